// engine_mpi.cc: the MPI engine of the trainer.
// SPDX-License-Identifier: Apache-2.0
#include "apps/train/engine.h"

#include <optional>

#include "thinwire/comm/mpi/mpi.h"

namespace thinwire::train {
namespace {

std::optional<MpiSession>& session() {
  static std::optional<MpiSession> session;  // lives until the process ends
  return session;
}

}  // namespace

std::unique_ptr<Group> make_mpi_engine(const GroupOptions& options) {
  if (!session()) session().emplace(nullptr, nullptr);
  return make_mpi_group(options);
}

void abort_mpi_engine(const std::string& text) { MpiSession::abort(text); }

void end_mpi_engine() { session().reset(); }

}  // namespace thinwire::train
