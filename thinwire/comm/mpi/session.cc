// session.cc: start and end of MPI in this process.
// SPDX-License-Identifier: Apache-2.0
#include <mpi.h>

#include <cstdio>
#include <cstdlib>
#include <exception>

#include "thinwire/comm/mpi/mpi.h"
#include "thinwire/core/error.h"

namespace thinwire {

MpiSession::MpiSession(int* argc, char*** argv) : exceptions_(std::uncaught_exceptions()) {
  int running = 0, level = MPI_THREAD_SINGLE;
  MPI_Initialized(&running);
  if (running) {
    MPI_Query_thread(&level);
  } else {
    MPI_Init_thread(argc, argv, MPI_THREAD_MULTIPLE, &level);
    owner_ = true;
    // Open MPI reports errors of non-blocking collectives to the world's handler, not to that
    // of their communicator. The default handler would end the job before we can say which rank
    // is at fault.
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  }
  if (level >= MPI_THREAD_MULTIPLE) return;
  if (owner_) MPI_Finalize();
  fail("MPI session: expected thread level MPI_THREAD_MULTIPLE (", int{MPI_THREAD_MULTIPLE},
       "), got ", level, "; the code that initialises MPI must request it");
}

MpiSession::~MpiSession() {
  if (std::uncaught_exceptions() > exceptions_) MPI_Abort(MPI_COMM_WORLD, 1);
  if (owner_) MPI_Finalize();
}

void MpiSession::abort(const std::string& text) {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  const std::string prefix = "rank " + std::to_string(rank) + ": ";
  const bool has_prefix = text.starts_with(prefix);
  std::fprintf(stderr, "%s%s\n", has_prefix ? "" : prefix.c_str(), text.c_str());
  std::fflush(stderr);
  MPI_Abort(MPI_COMM_WORLD, 1);
  std::abort();  // MPI_Abort does not return, but its declaration does not say so
}

int run_mpi(int argc, char** argv, const std::function<int(Group&)>& body,
            const GroupOptions& options) {
  const MpiSession session(&argc, &argv);
  try {
    const auto group = make_mpi_group(options);
    return body(*group);
  } catch (const std::exception& error) {
    MpiSession::abort(error.what());
  } catch (...) {
    MpiSession::abort("an exception of unknown type");
  }
}

}  // namespace thinwire
