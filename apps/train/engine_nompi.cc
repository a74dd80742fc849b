// engine_nompi.cc: the errors of `--engine mpi` when MPI was not found.
// SPDX-License-Identifier: Apache-2.0
#include "apps/train/engine.h"
#include "apps/verb.h"

namespace thinwire::train {

std::unique_ptr<Group> make_mpi_engine(const GroupOptions&) {
  throw apps::BadInput("--engine mpi: this thinwire was built without MPI; use gloo");
}

void abort_mpi_engine(const std::string&) {}
void end_mpi_engine() {}

}  // namespace thinwire::train
