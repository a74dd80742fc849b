// mpi.h: the MPI engine: real processes under mpirun or Slurm, without torch. Every wait has a time
// limit: when a rank stays silent, all others report its number instead of hanging.
//
//     int main(int argc, char** argv) {
//       return thinwire::run_mpi(argc, argv, [](thinwire::Group& group) { ...; return 0; });
//     }
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>

#include "thinwire/comm/group.h"

namespace thinwire {

// Calls MPI_Init and MPI_Finalize for the process, unless somebody else does. Put one at the top of
// main(). When an exception leaves its scope, it aborts the job instead: MPI_Finalize would wait
// for ranks that never arrive. To print an error, catch it inside the session's scope and call
// abort(), or let run_mpi do all of this.
class MpiSession {
 public:
  MpiSession(int* argc, char*** argv);  // asks for MPI_THREAD_MULTIPLE; throws when MPI has less
  ~MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

  // Prints "rank R: text" to stderr and ends all ranks of the job with a non-zero status.
  [[noreturn]] static void abort(const std::string& text);

 private:
  int exceptions_;
  bool owner_ = false;
};

// The group of all ranks. It uses duplicates of MPI_COMM_WORLD, so that our messages never mix with
// others. All ranks must call it. Without mpirun it is a group of one.
//
// After a failure MPI may still hold buffers of collectives in flight, and would write to them in
// any later MPI call of this process. So do not continue: end the process, as run_mpi does.
std::unique_ptr<Group> make_mpi_group(const GroupOptions& options = {});

// A whole main(): session, group, body. Returns what body returns. An exception from body is
// printed once, with the rank, and aborts the job.
int run_mpi(int argc, char** argv, const std::function<int(Group&)>& body,
            const GroupOptions& options = {});

}  // namespace thinwire
