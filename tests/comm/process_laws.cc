// process_laws.cc: the laws of groups between processes: plain, in small pieces, and over a slow
// link.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "tests/comm/engine.h"
#include "tests/comm/group_laws.h"
#include "thinwire/comm/cost.h"
#include "thinwire/comm/link.h"
#include "thinwire/comm/reduce.h"

namespace {

using namespace thinwire;

void all_laws(Group& group) {
  laws::gather_laws(group);
  laws::broadcast_laws(group);
  laws::order_laws(group);
  laws::all_reduce_laws(group);
}

// Whole shares and several segments, but a multiple of neither.
void long_all_reduce(Group& group) {
  laws::all_reduce_is_exact_on_whole_numbers(group, DType::f32, ReduceOp::sum, 1'234'567);
  laws::all_reduce_is_identical_when_it_rounds(group, DType::f16, 765'431);
}

void require_cost(const Group& group, Pending pending, const Cost& expected, const char* what) {
  pending.wait();
  const Cost& cost = pending.cost();
  laws::require(group, cost == expected, what, " of ", group.name(), ": ", cost.steps,
                " steps and a path of ", cost.path, ", expected ", expected.steps, " and ",
                expected.path, "; sent ", cost.sent, " and received ", cost.received);
}

// Every engine reports what it really does, because the emulated link gets its costs from here.
void costs(Group& group) {
  const std::size_t n = laws::size_of_group(group);
  const auto& cost_of = group.name() == "mpi"    ? mpi_cost
                        : group.name() == "c10d" ? c10d_cost
                                                 : nccl_cost;
  const auto cost = [&](const Call& call, const Operands& operands = {}) {
    return cost_of(call, operands, group.rank(), group.size());
  };
  laws::Buffer data(n * 40), slots(n * 40), longer(n << 20);
  std::vector<std::size_t> sizes(n), threes(n, 3);
  const auto sum = [&](Bytes of) { return group.all_reduce(of, DType::f32, ReduceOp::sum, {}); };
  const auto sum_call = [](const laws::Buffer& of) {
    return Call{.kind = Kind::all_reduce, .bytes = of.size(), .dtype = DType::f32};
  };
  require_cost(group, sum(data), cost(sum_call(data)), "all_reduce");
  require_cost(group, sum(longer), cost(sum_call(longer)), "long all_reduce");
  require_cost(group, group.all_gather(ConstBytes(data).first(3), 40, slots, sizes, {}),
               cost({.kind = Kind::all_gather, .bytes = 40}, {.sizes = threes}), "all_gather");
  require_cost(
      group, group.all_to_all(data, threes, 40, slots, sizes, {}),
      cost({.kind = Kind::all_to_all, .bytes = 40}, {.mine_sizes = threes, .sizes = threes}),
      "all_to_all");
  require_cost(group, group.broadcast(data, group.size() - 1, {}),
               cost({.kind = Kind::broadcast, .bytes = data.size(), .root = group.size() - 1}),
               "broadcast");
  require_cost(group, group.barrier(), cost({.kind = Kind::barrier}), "barrier");
}

int body(Group& group) {
  costs(group);
  all_laws(group);
  long_all_reduce(group);
  if (group.name() == "c10d") {
    laws::sums_add_in_the_order_of_shares(group, 1001);
    if (group.size() <= 3)  // with 8 ranks this would be too much data
      laws::sums_add_in_the_order_of_shares(group, laws::size_of_group(group) * 262'144 + 5);
  }
  // Pieces of 4 KiB, like messages beyond 2^31 bytes under MPI. A law with 35003 elements has
  // dozens.
  if (group.name() == "mpi") all_laws(*testing::make_group({.piece_bytes = 4096}));
  // Groups that meet at the same address while the first one exists.
  const auto slow = emulate_link(testing::make_group(), Link::parse("1gbit,100us"));
  laws::order_laws(*slow);
  laws::require(group, slow->name() == group.name() + " over an emulated 1gbit,100us",
                slow->name());
  group.barrier().wait();
  return EXIT_SUCCESS;
}

}  // namespace

int main(int argc, char** argv) { return testing::run_ranks(argc, argv, body); }
