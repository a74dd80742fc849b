// cost_test.cc: steps and bytes of the message patterns, counted by hand.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/comm/cost.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <ostream>
#include <vector>

#include "thinwire/comm/local.h"

namespace thinwire {

void PrintTo(const Cost& cost, std::ostream* out) {
  *out << cost.steps << " steps, path " << cost.path << ", sent " << cost.sent << ", received "
       << cost.received << ", piece " << cost.piece;
}

namespace {

TEST(Cost, OfShares) {
  // Three shares of 25 to their owners, then the own sum to three: 150, in two steps, not in six.
  EXPECT_EQ(shares_cost(100, 1, 2, 4), (Cost{2, 150, 150, 150}));
  // Two swap the whole at once.
  EXPECT_EQ(shares_cost(100, 4, 1, 2), (Cost{1, 100, 100, 100}));
  EXPECT_EQ(shares_cost(100, 4, 0, 1), Cost{});
  // 5 elements of 4 bytes among 3: shares of 8, 8 and 4 bytes. Rank 2 sends 16 and twice 4; the
  // path is that of rank 0, which sends 12 and twice 8.
  EXPECT_EQ(shares_cost(20, 4, 2, 3), (Cost{2, 28, 24, 24}));
  EXPECT_EQ(shares_cost(20, 4, 0, 3), (Cost{2, 28, 28, 28}));
  EXPECT_EQ(share_end(20, 4, 0, 3), 8u);
  EXPECT_EQ(share_end(20, 4, 1, 3), 16u);
  EXPECT_EQ(share_end(20, 4, 2, 3), 20u);
}

// Long sums go around: shares of a megabyte at least, of more than two ranks.
TEST(Cost, OfSums) {
  const std::size_t mega = 1 << 20;
  EXPECT_EQ(sum_cost(4 * mega, 4, 0, 4), (Cost{6, 6 * mega, 6 * mega, 6 * mega, mega / 4}));
  EXPECT_EQ(sum_cost(4 * mega - 4, 4, 0, 4), shares_cost(4 * mega - 4, 4, 0, 4));
  EXPECT_EQ(sum_cost(4 * mega, 4, 0, 5), shares_cost(4 * mega, 4, 0, 5));
  EXPECT_EQ(sum_cost(4 * mega, 4, 0, 2), shares_cost(4 * mega, 4, 0, 2));
  EXPECT_EQ(sum_cost(400 * mega, 4, 0, 4).piece, 100 * mega / 8) << "of 8 segments at most";
  EXPECT_EQ(segments_of(0), 1u);
  EXPECT_EQ(segments_of(mega), 4u);
}

TEST(Cost, OfARing) {
  EXPECT_EQ(ring_cost(100, 4), (Cost{6, 150, 150, 150}));
  EXPECT_EQ(ring_cost(100, 1), Cost{});
}

// Of 4: the root sends to 1 and 2 at once, both have it after two messages; then 2 sends to 3.
TEST(Cost, OfATree) {
  EXPECT_EQ(tree_cost(10, 0, 0, 4), (Cost{2, 30, 20, 0}));
  EXPECT_EQ(tree_cost(10, 0, 1, 4), (Cost{2, 30, 0, 10}));
  EXPECT_EQ(tree_cost(10, 0, 2, 4), (Cost{2, 30, 10, 10}));
  EXPECT_EQ(tree_cost(10, 3, 1, 4), (Cost{2, 30, 10, 10})) << "two places after the root";
  EXPECT_EQ(tree_cost(10, 0, 0, 5).steps, 3u);
  EXPECT_EQ(tree_cost(10, 0, 0, 8), (Cost{3, 60, 30, 0}));
  EXPECT_EQ(tree_cost(10, 0, 0, 1), Cost{});
}

TEST(Cost, OfAChain) {
  EXPECT_EQ(chain_cost(10, 2, 2, 4), (Cost{3, 10, 10, 0}));
  EXPECT_EQ(chain_cost(10, 2, 0, 4), (Cost{3, 10, 10, 10}));
  EXPECT_EQ(chain_cost(10, 2, 1, 4), (Cost{3, 10, 0, 10}));
  EXPECT_EQ(chain_cost(10, 0, 0, 1), Cost{});
}

// To rank 0 in two steps of one message, and back as a tree in which 1, not 2, sends to 3.
TEST(Cost, OfMpi) {
  EXPECT_EQ(mpi_reduce_cost(10, 0, 4), (Cost{4, 20 + 30, 20, 20}));
  EXPECT_EQ(mpi_reduce_cost(10, 1, 4), (Cost{4, 20 + 30, 10 + 10, 10}));
  EXPECT_EQ(mpi_reduce_cost(10, 2, 4), (Cost{4, 20 + 30, 10, 10 + 10}));
  EXPECT_EQ(mpi_reduce_cost(10, 3, 4), (Cost{4, 20 + 30, 10, 10}));
  EXPECT_EQ(mpi_reduce_cost(10, 0, 1), Cost{});
  // Flat up to 4; the agreement beside it is an all-reduce.
  EXPECT_EQ(mpi_broadcast_cost(10, 1, 1, 4), (Cost{4, 30, 30, 0}));
  EXPECT_EQ(mpi_broadcast_cost(10, 1, 0, 4), (Cost{4, 30, 0, 10}));
  // Of 6 the root sends to 1, 2 and 4, then 1 sends to 3 and 5. Root 5 changes places with 0.
  EXPECT_EQ(mpi_broadcast_cost(10, 5, 5, 6), (Cost{6, 50, 30, 0}));
  EXPECT_EQ(mpi_broadcast_cost(10, 5, 1, 6), (Cost{6, 50, 20, 10}));
  EXPECT_EQ(mpi_broadcast_cost(10, 5, 0, 6), (Cost{6, 50, 0, 10}));
}

TEST(Cost, OfGathersAndPieces) {
  const std::vector<std::size_t> sizes = {5, 100, 7}, mine = {1, 2, 3};
  EXPECT_EQ(gather_cost(sizes, 0), (Cost{1, 200, 10, 107}));
  EXPECT_EQ(gather_cost(sizes, 1), (Cost{1, 200, 200, 12}));
  EXPECT_EQ(gather_cost(std::span(sizes).first(1), 0), Cost{});
  EXPECT_EQ(pieces_cost(mine, sizes, 0), (Cost{1, 107, 5, 107}));
  EXPECT_EQ(pieces_cost(sizes, mine, 1), (Cost{1, 12, 12, 4}));
  EXPECT_EQ(pieces_cost(std::span(mine).first(1), std::span(sizes).first(1), 0), Cost{});
}

TEST(Cost, OfBarriersAndAgreements) {
  EXPECT_EQ(rounds_cost(5), (Cost{3, 0, 0, 0}));
  EXPECT_EQ(rounds_cost(1), Cost{});
  EXPECT_EQ(after_agreement(ring_cost(100, 4), 4), (Cost{7, 150, 150, 150}));
  EXPECT_EQ(after_agreement({}, 1), Cost{});
}

TEST(Cost, AddsUpToTraffic) {
  Traffic sum;
  add(sum, {2, 150, 140, 130});
  add(sum, {2, 150, 4, 3});
  EXPECT_EQ(sum.sent, 144u);
  EXPECT_EQ(sum.received, 133u);
  EXPECT_EQ(sum.collectives, 2u);
}

// Whoever sends, somebody receives: over all ranks the two sums are equal.
TEST(Cost, LosesNoBytes) {
  for (int ranks = 1; ranks <= 17; ++ranks) {
    std::uint64_t sent = 0, received = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      for (const Cost& cost :
           {shares_cost(1000, 4, rank, ranks), ring_cost(1000, ranks),
            tree_cost(1000, ranks / 2, rank, ranks), chain_cost(1000, ranks / 2, rank, ranks),
            mpi_reduce_cost(1000, rank, ranks), mpi_broadcast_cost(1000, ranks / 2, rank, ranks)}) {
        sent += cost.sent;
        received += cost.received;
        EXPECT_GE(cost.path, std::max(cost.sent, cost.received)) << ranks << " ranks";
      }
    }
    EXPECT_EQ(sent, received) << ranks << " ranks";
  }
}

// Threads stand for the messages of c10d.
TEST(Cost, OfLocal) {
  run_local(4, [](Group& group) {
    std::vector<std::byte> data(400), slots(400);
    std::vector<std::size_t> sizes(4);
    const std::vector<std::size_t> mine = {1, 2, 3, 4};
    const auto cost_of = [](Pending pending) {
      EXPECT_EQ(pending.cost(), Cost{}) << "before it is done";
      pending.wait();
      return pending.cost();
    };
    EXPECT_EQ(cost_of(group.all_reduce(data, DType::f32, ReduceOp::sum, {})),
              (Cost{2, 600, 600, 600}));
    EXPECT_EQ(cost_of(group.all_gather(ConstBytes(data).first(10), 100, slots, sizes, {})),
              (Cost{1, 30, 30, 30}));
    if (group.rank() == 0)
      EXPECT_EQ(cost_of(group.all_to_all(data, mine, 100, slots, sizes, {})), (Cost{1, 9, 9, 3}));
    else
      group.all_to_all(data, mine, 100, slots, sizes, {}).wait();
    EXPECT_EQ(cost_of(group.broadcast(data, 0, {})).path, 1200u);
    EXPECT_EQ(cost_of(group.barrier()), (Cost{2, 0, 0, 0}));
  });
}

}  // namespace
}  // namespace thinwire
