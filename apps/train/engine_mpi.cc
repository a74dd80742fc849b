// engine_mpi.cc: the MPI engine of the trainer.
// SPDX-License-Identifier: Apache-2.0
#include "apps/train/engine.h"
#include "thinwire/comm/mpi/mpi.h"

namespace thinwire::train {

std::unique_ptr<Group> make_mpi_engine(const GroupOptions& options) {
  static MpiSession session(nullptr, nullptr);  // until the process ends
  return make_mpi_group(options);
}

void abort_mpi_engine(const std::string& text) { MpiSession::abort(text); }

}  // namespace thinwire::train
