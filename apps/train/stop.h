// stop.h: ends a training early. After Ctrl-C all ranks agree on one last step, and can save it.
// No torch here.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "apps/train/launch.h"
#include "apps/train/settings.h"

namespace thinwire::train {

// Whether a signal ends the training at a step, with a checkpoint. Otherwise it ends the process.
bool stops_at_a_step(const Settings& settings);

// Catches SIGINT, SIGTERM and SIGHUP (in a worker of launch(): SIGINT, which the parent sends; with
// MPI also SIGUSR1, which mpirun forwards). One signal to one rank is enough. A second one ends the
// process.
class Stop {
 public:
  // Does nothing unless stops_at_a_step(). Workers must have met already. With MPI: a collective.
  Stop(const Settings& settings, const Place& place);
  ~Stop();
  Stop(const Stop&) = delete;
  Stop& operator=(const Stop&) = delete;

  // Call before each step: false when the training ends before it, on all ranks alike. Waits while
  // ranks agree. Throws an Error when they cannot. Does not communicate, except with MPI: there
  // every step sends 20 bytes in the background.
  bool allows(std::uint64_t step);

 private:
  class Agreement;
  class Shared;
  class Store;
  class Votes;
  std::unique_ptr<Agreement> agreement_;  // with other ranks
};

}  // namespace thinwire::train
