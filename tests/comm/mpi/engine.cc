// engine.cc: test programs on the MPI engine, under mpirun.
// SPDX-License-Identifier: Apache-2.0
#include "tests/comm/engine.h"

#include "thinwire/comm/mpi/mpi.h"

namespace thinwire::testing {

std::unique_ptr<Group> make_group(const GroupOptions& options) { return make_mpi_group(options); }

int run_ranks(int argc, char** argv, const std::function<int(Group&)>& body,
              const GroupOptions& options) {
  return run_mpi(argc, argv, body, options);
}

}  // namespace thinwire::testing
