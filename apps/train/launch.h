// launch.h: this process's place among the workers of its job, and how to start our own workers. No
// torch here.
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
  std::string host;  // where the workers meet (all engines except MPI)
  std::uint16_t port = 0;
  int local_rank = 0;          // rank among the workers of this machine
  bool beside_others = false;  // other workers share this machine's cores
  // File descriptors from the process that started us, or -1.
  int report = -1;    // that process reads it
  int listener = -1;  // rank 0: already listens at the port
};

// Our place according to the environment: that of a worker we started ourselves, or of torchrun
// (RANK, WORLD_SIZE), mpirun (OMPI_COMM_WORLD_*) or Slurm (SLURM_PROCID, SLURM_NTASKS). Empty if
// there is no job to join. Throws BadInput if --workers or the engine does not match the job.
std::optional<Place> find_place(const Settings& settings);

// Starts `workers` copies of this process, each with the same command line and its own place.
// Returns when all have ended normally. When one fails, the rest are ended within seconds, and an
// exception names the rank and the cause: BadInput if the worker found bad input. SIGINT, SIGTERM
// and SIGHUP end the workers, and an Interrupted says so. With `stops`, the workers first get a
// SIGINT (see stop.h) and end at a step of their choice; only a second signal ends them at once.
void launch(int workers, bool stops);

// Tells the process that started us why we end, with the exit code that will follow.
void tell(const Place& place, const std::string& text, int code);

// Ends the process. A text goes to tell() first. Does not wait for anything, because threads may be
// stuck in collectives whose peers are gone.
[[noreturn]] void leave(const Place& place, const std::string& text, int code);

}  // namespace thinwire::train
