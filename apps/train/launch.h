// launch.h: where this process stands among the workers of its job, and starting workers of our
// own. No torch here.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "apps/train/settings.h"

namespace thinwire::train {

struct Place {
  int rank = 0;
  int world = 1;
  std::string host;  // where the workers meet (all but MPI)
  std::uint16_t port = 0;
  int local_rank = 0;          // among the workers of this machine
  bool beside_others = false;  // other workers share this machine's cores
  // File descriptors, from the process that started us; -1 without it.
  int report = -1;    // that it reads
  int listener = -1;  // rank 0: listens at the port already
};

// The place that the environment gives us: that of a worker we started ourselves, or of torchrun
// (RANK, WORLD_SIZE), mpirun (OMPI_COMM_WORLD_*) or Slurm (SLURM_PROCID, SLURM_NTASKS). Nothing
// when there is no job to join. Throws BadInput when --workers or the engine does not fit the job.
std::optional<Place> find_place(const Settings& settings);

// Starts `workers` copies of this process, each with the same command line and a place of its own,
// and returns when all have ended well. When one ends otherwise, the rest are ended within seconds
// and an exception names the rank and the cause: BadInput when the worker found bad input. SIGINT,
// SIGTERM and SIGHUP end the workers, and an Interrupted says so. With `stops` the workers get a
// SIGINT first (see stop.h) and end at a step of their choice; only a second signal ends them.
void launch(int workers, bool stops);

// Tells whoever started us why we end, with the exit code that will follow.
void tell(const Place& place, const std::string& text, int code);

// Ends the process; a text goes to tell() first. Waits for nothing, because threads may be stuck in
// collectives whose partners are gone.
[[noreturn]] void leave(const Place& place, const std::string& text, int code);

}  // namespace thinwire::train
