// stop.h: ends a training early. After Ctrl-C all ranks agree on one last step, and can save it.
// No torch here.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "apps/train/launch.h"
#include "apps/train/settings.h"

namespace thinwire::train {

// Whether a signal ends the training of these settings at a step, with a checkpoint. Else it ends
// the process. MPI has no place where ranks could agree outside of collectives, and mpirun kills
// its ranks a second after Ctrl-C.
bool stops_at_a_step(const Settings& settings);

// Catches SIGINT, SIGTERM and SIGHUP (in a worker of launch(): SIGINT, which the parent sends). One
// signal to one rank is enough. A second one ends the process.
class Stop {
 public:
  // Does nothing unless stops_at_a_step(). Workers must have met already.
  Stop(const Settings& settings, const Place& place);
  ~Stop();
  Stop(const Stop&) = delete;
  Stop& operator=(const Stop&) = delete;

  // Call before each step: false when the training ends before it, on all ranks alike. Costs no
  // communication, but waits while ranks agree. Throws an Error when they cannot.
  bool allows(std::uint64_t step);

 private:
  class Agreement;
  std::unique_ptr<Agreement> agreement_;  // with other ranks
};

}  // namespace thinwire::train
