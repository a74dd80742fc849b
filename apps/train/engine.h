// engine.h: the group of this worker's job, and small sums over it. No torch here.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "apps/train/launch.h"
#include "apps/train/settings.h"
#include "thinwire/comm/group.h"
#include "thinwire/comm/stream_group.h"

namespace thinwire::train {

GroupOptions options_of(const Settings& settings);

// Gloo, MPI or NCCL (through that GPU), as the settings say; a group of one if there is one worker.
// It runs over an emulated link if --link asks for one, except with --virtual, which estimates the
// link. Gloo where NCCL's bytes go from GPU to GPU. A collective.
std::unique_ptr<Group> make_group(const Settings& settings, const Place& place, int gpu);
// What carries bytes from GPU to GPU, for work in streams: NCCL, or a group of one. Null: the group
// above carries them, through the host. So it is over an emulated link, which delays bytes of the
// host. A collective, after make_group().
std::unique_ptr<StreamGroup> make_data_group(const Settings& settings, const Place& place, int gpu);

// An MPI group. Throws BadInput if MPI was not built.
std::unique_ptr<Group> make_mpi_engine(const GroupOptions& options);
// Prints the text and ends all ranks of the job.
void abort_mpi_engine(const std::string& text);
// Ends MPI in this process, after all groups are destroyed. All ranks must call it. Without it,
// mpirun takes an exit for a crash and ends the other ranks.
void end_mpi_engine();

void add(std::vector<double>& sums, const std::vector<double>& values);
// The sum of each value over the ranks, added in rank order: the same bits everywhere.
std::vector<double> sum_over(Group& group, const std::vector<double>& values);

}  // namespace thinwire::train
