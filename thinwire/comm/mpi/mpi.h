// mpi.h: the MPI engine: real processes under mpirun or Slurm, no torch. Waiting is ours, with a
// time limit: a rank that stays silent is named on all others instead of hanging them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "thinwire/comm/group.h"

namespace thinwire {

// MPI_Init and MPI_Finalize of the process, when nobody else does them. One at the top of main().
// When left by an exception the job is aborted instead: MPI_Finalize would wait for ranks that no
// longer come.
class MpiSession {
 public:
  MpiSession(int* argc, char*** argv);  // asks for MPI_THREAD_MULTIPLE; throws when MPI has less
  ~MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

 private:
  int exceptions_;
};

// The group of all ranks (a duplicate of MPI_COMM_WORLD, so that our messages meet nobody else's).
std::unique_ptr<Group> make_mpi_group(const GroupOptions& options = {});

}  // namespace thinwire
