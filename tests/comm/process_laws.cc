// process_laws.cc: the laws of groups between processes: as they are, in small pieces, over a slow
// link.
// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>

#include "tests/comm/engine.h"
#include "tests/comm/group_laws.h"
#include "thinwire/comm/link.h"

namespace {

using namespace thinwire;

void all_laws(Group& group) {
  laws::gather_laws(group);
  laws::broadcast_laws(group);
  laws::order_laws(group);
  laws::all_reduce_laws(group);
}

// Longer than a ring's segments, not a multiple of them.
void long_all_reduce(Group& group) {
  laws::all_reduce_is_exact_on_whole_numbers(group, DType::f32, ReduceOp::sum, 1'234'567);
  laws::all_reduce_is_identical_when_it_rounds(group, DType::f16, 765'431);
}

int body(Group& group) {
  all_laws(group);
  long_all_reduce(group);
  // Pieces of 4 KiB, as messages beyond 2^31 bytes have them under MPI. A law of 35003 elements has
  // dozens.
  if (group.name() == "mpi") all_laws(*testing::make_group({.piece_bytes = 4096}));
  // Groups that meet at the same address while the first one lives.
  const auto slow = emulate_link(testing::make_group(), Link::parse("1gbit,100us"));
  laws::order_laws(*slow);
  laws::require(group, slow->name() == group.name() + " over an emulated 1gbit,100us",
                slow->name());
  group.barrier().wait();
  return EXIT_SUCCESS;
}

}  // namespace

int main(int argc, char** argv) { return testing::run_ranks(argc, argv, body); }
