// laws.cc: the laws of groups under mpirun, as they are, in small pieces, and over a slow link.
// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>

#include "tests/comm/group_laws.h"
#include "thinwire/comm/link.h"
#include "thinwire/comm/mpi/mpi.h"

namespace {

using namespace thinwire;

void all_laws(Group& group) {
  laws::gather_laws(group);
  laws::broadcast_laws(group);
  laws::order_laws(group);
  laws::all_reduce_laws(group);
}

int body(Group& group) {
  all_laws(group);
  // Pieces of 4 KiB, as messages beyond 2^31 bytes have them. A law of 35003 elements has dozens.
  const auto pieces = make_mpi_group({.piece_bytes = 4096});
  all_laws(*pieces);
  const auto slow = emulate_link(make_mpi_group(), Link::parse("1gbit,100us"));
  laws::order_laws(*slow);
  laws::require(group, slow->name() == "mpi over an emulated 1gbit,100us", slow->name());
  group.barrier().wait();
  return EXIT_SUCCESS;
}

}  // namespace

int main(int argc, char** argv) { return run_mpi(argc, argv, body); }
