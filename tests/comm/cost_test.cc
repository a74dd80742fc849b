// cost_test.cc: steps and bytes of each engine's collectives, counted by hand.
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
       << cost.received << ", piece " << cost.piece << ", lead " << cost.lead;
}

namespace {

constexpr std::size_t kMega = 1 << 20;

Call sum_of(std::size_t bytes, DType dtype = DType::f32) {
  return {.kind = Kind::all_reduce, .bytes = bytes, .dtype = dtype};
}
Call broadcast_of(std::size_t bytes, int root) {
  return {.kind = Kind::broadcast, .bytes = bytes, .root = root};
}

// The engine's costs without the latency before the first byte, which has its own test.
template <typename CostOf>
Cost without_lead(CostOf cost_of, const Call& call, int rank, int ranks) {
  Cost cost = cost_of(call, {}, rank, ranks);
  cost.lead = 0;
  return cost;
}

TEST(C10dCost, OfShortSums) {
  const auto cost = [](std::size_t bytes, int rank, int ranks) {
    return without_lead(c10d_cost, sum_of(bytes), rank, ranks);
  };
  // Three shares of 40 to their owners, then our own sum to three ranks: 240, in two steps,
  // not in six.
  EXPECT_EQ(cost(160, 2, 4), (Cost{2, 240, 240, 240}));
  // Two ranks swap the whole buffer in one step.
  EXPECT_EQ(cost(100, 1, 2), (Cost{1, 100, 100, 100}));
  // 5 elements of 4 bytes among 3 ranks: shares of 8, 8 and 4 bytes. Rank 2 sends 16 bytes and
  // twice 4. The path is that of rank 0, which sends 12 and twice 8.
  EXPECT_EQ(cost(20, 2, 3), (Cost{2, 28, 24, 24}));
  EXPECT_EQ(cost(20, 0, 3), (Cost{2, 28, 28, 28}));
  EXPECT_EQ(share_end(20, 4, 0, 3), 8u);
  EXPECT_EQ(share_end(20, 4, 1, 3), 16u);
  EXPECT_EQ(share_end(20, 4, 2, 3), 20u);
}

// Long sums go around a ring: with shares of at least a megabyte and more than two ranks.
TEST(C10dCost, OfLongSums) {
  EXPECT_EQ(without_lead(c10d_cost, sum_of(4 * kMega), 0, 4),
            (Cost{6, 6 * kMega, 6 * kMega, 6 * kMega, kMega / 4}));
  EXPECT_FALSE(takes_ring(4 * kMega - 4, 4));
  EXPECT_FALSE(takes_ring(4 * kMega, 5));
  EXPECT_FALSE(takes_ring(4 * kMega, 2));
  EXPECT_EQ(without_lead(c10d_cost, sum_of(4 * kMega - 4), 0, 4).steps, 2u);
  EXPECT_EQ(c10d_cost(sum_of(400 * kMega), {}, 0, 4).piece, 100 * kMega / 8)
      << "8 segments at most";
  EXPECT_EQ(segments_of(kMega, 4), 4u);
}

// Shares of 32 kB or more travel in two segments, if more than two ranks meet.
TEST(C10dCost, OfSumsInSegments) {
  constexpr std::size_t kShare = 32 << 10;
  EXPECT_EQ(segments_of(0, 4), 1u);
  EXPECT_EQ(segments_of(kShare - 1, 4), 1u);
  EXPECT_EQ(segments_of(kShare, 4), 2u);
  EXPECT_EQ(segments_of(kShare, 2), 1u);
  EXPECT_EQ(segments_of(2 * kMega, 2), 8u);
  EXPECT_EQ(without_lead(c10d_cost, sum_of(4 * kShare), 0, 4),
            (Cost{2, 6 * kShare * 11 / 10, 6 * kShare, 6 * kShare, 3 * kShare / 2}));
  EXPECT_EQ(without_lead(c10d_cost, sum_of(4 * kShare - 16), 0, 4).piece, 0u);
}

// Messages of 32 kB and more, where more than two ranks meet, take a tenth longer than their bytes.
TEST(C10dCost, OfFlowsThatMeet) {
  constexpr std::size_t kLong = 32 << 10;
  const auto path_of = [](Kind kind, std::vector<std::size_t> sizes) {
    const std::vector<std::size_t> mine(sizes.size(), 0);
    const int ranks = static_cast<int>(sizes.size());
    return c10d_cost({.kind = kind}, {.mine_sizes = mine, .sizes = sizes}, 0, ranks).path;
  };
  EXPECT_EQ(path_of(Kind::all_gather, {0, kLong, 7}), 2 * kLong + 2 * kLong / 10);
  EXPECT_EQ(path_of(Kind::all_gather, {0, kLong - 1, 7}), 2 * (kLong - 1));
  EXPECT_EQ(path_of(Kind::all_gather, {0, kLong}), kLong);
  EXPECT_EQ(path_of(Kind::all_to_all, {0, kLong, 7}), kLong + 7 + (kLong + 7) / 10);
  EXPECT_EQ(path_of(Kind::all_to_all, {0, kLong}), kLong);
  EXPECT_EQ(c10d_cost(sum_of(2 * kLong), {}, 0, 2).path, 2 * kLong);
  EXPECT_EQ(c10d_cost(sum_of(3 * kMega), {}, 0, 3).path, 4 * kMega) << "a ring has one flow";
}

// With 4 ranks, the root sends to 1 and 2 at once. Both have it after two messages; then 2
// sends to 3.
TEST(C10dCost, OfBroadcastsAndBarriers) {
  const auto cost = [](int root, int rank, int ranks) {
    return without_lead(c10d_cost, broadcast_of(10, root), rank, ranks);
  };
  EXPECT_EQ(cost(0, 0, 4), (Cost{2, 30, 20, 0}));
  EXPECT_EQ(cost(0, 1, 4), (Cost{2, 30, 0, 10}));
  EXPECT_EQ(cost(0, 2, 4), (Cost{2, 30, 10, 10}));
  EXPECT_EQ(cost(3, 1, 4), (Cost{2, 30, 10, 10})) << "two places after the root";
  EXPECT_EQ(cost(0, 0, 5).steps, 3u);
  EXPECT_EQ(cost(0, 0, 8), (Cost{3, 60, 30, 0}));
  EXPECT_EQ(without_lead(c10d_cost, {}, 0, 5), (Cost{.steps = 3}));
}

TEST(C10dCost, OfGathersAndPieces) {
  std::vector<std::size_t> sizes = {5, 100, 7};
  const std::vector<std::size_t> mine = {1, 2, 3};
  const Call gather{.kind = Kind::all_gather}, pieces{.kind = Kind::all_to_all};
  EXPECT_EQ(c10d_cost(gather, {.sizes = sizes}, 0, 3), (Cost{1, 200, 10, 107, 0, 1}));
  EXPECT_EQ(c10d_cost(gather, {.sizes = sizes}, 1, 3), (Cost{1, 200, 200, 12, 0, 1}));
  EXPECT_EQ(c10d_cost(pieces, {.mine_sizes = mine, .sizes = sizes}, 0, 3),
            (Cost{1, 107, 5, 107, 0, 1}));
}

// To rank 0 in two steps of one message, and back along a tree in which 1, not 2, sends to 3.
TEST(MpiCost, OfSums) {
  const auto cost = [](std::size_t bytes, int rank) {
    return mpi_cost(sum_of(bytes), {}, rank, 4);
  };
  EXPECT_EQ(cost(12, 0), (Cost{4, 24 + 36, 24, 24}));
  EXPECT_EQ(cost(12, 1), (Cost{4, 24 + 36, 12 + 12, 12}));
  EXPECT_EQ(cost(12, 2), (Cost{4, 24 + 36, 12, 12 + 12}));
  EXPECT_EQ(cost(12, 3), (Cost{4, 24 + 36, 12, 12}));
  // Beyond the eager limit every message needs a handshake.
  EXPECT_EQ(cost(65536, 0).steps, 4u);
  EXPECT_EQ(cost(65540, 0).steps, 12u);
  EXPECT_EQ(mpi_cost({}, {}, 0, 5), (Cost{.steps = 6})) << "barrier";
}

TEST(MpiCost, OfBroadcasts) {
  const auto cost = [](std::size_t bytes, int root, int rank, int ranks) {
    return mpi_cost(broadcast_of(bytes, root), {}, rank, ranks);
  };
  // Flat for up to 4 ranks. The agreement beside it is an all-reduce.
  EXPECT_EQ(cost(10, 1, 1, 4), (Cost{4, 30, 30, 0}));
  EXPECT_EQ(cost(10, 1, 0, 4), (Cost{4, 30, 0, 10}));
  // With 6 ranks, the root sends to 1, 2 and 4, then 1 sends to 3 and 5. Root 5 swaps
  // places with 0.
  EXPECT_EQ(cost(10, 5, 5, 6), (Cost{6, 50, 30, 0}));
  EXPECT_EQ(cost(10, 5, 1, 6), (Cost{6, 50, 20, 10}));
  EXPECT_EQ(cost(10, 5, 0, 6), (Cost{6, 50, 0, 10}));
  EXPECT_EQ(cost(100'000, 0, 0, 6).steps, 9u) << "three steps of messages that ask first";
}

TEST(MpiCost, OfGathers) {
  std::vector<std::size_t> sizes = {5, 65536};
  const Call gather{.kind = Kind::all_gather};
  EXPECT_EQ(mpi_cost(gather, {.sizes = sizes}, 0, 2), (Cost{1, 65536, 5, 65536}));
  ++sizes[1];
  EXPECT_EQ(mpi_cost(gather, {.sizes = sizes}, 0, 2).lead, 2u);
  const std::vector<std::size_t> mine = {0, 70'000};
  const Call pieces{.kind = Kind::all_to_all};
  EXPECT_EQ(mpi_cost(pieces, {.mine_sizes = mine, .sizes = sizes}, 0, 2),
            (Cost{1, 70'000, 70'000, 65537, 0, 2}));
}

TEST(NcclCost, OfAll) {
  EXPECT_EQ(nccl_cost(sum_of(100), {}, 1, 4), (Cost{6, 150, 150, 150, 0, 2}));
  EXPECT_EQ(nccl_cost(sum_of(100, DType::i8), {}, 1, 4).sent, 600u) << "travels as i32";
  EXPECT_EQ(nccl_cost(broadcast_of(10, 2), {}, 2, 4), (Cost{3, 10, 10, 0, 0, 2}));
  EXPECT_EQ(nccl_cost(broadcast_of(10, 2), {}, 0, 4), (Cost{3, 10, 10, 10, 0, 2}));
  EXPECT_EQ(nccl_cost(broadcast_of(10, 2), {}, 1, 4), (Cost{3, 10, 0, 10, 0, 2}));
  EXPECT_EQ(nccl_cost({}, {}, 0, 4), (Cost{.lead = 2})) << "barrier";
  std::vector<std::size_t> sizes = {5, 100, 7};
  EXPECT_EQ(nccl_cost({.kind = Kind::all_gather, .bytes = 100}, {.sizes = sizes}, 0, 3),
            (Cost{1, 200, 10, 107, 0, 2}));
}

TEST(Cost, OfOneRankIsNothing) {
  std::vector<std::size_t> sizes = {5};
  for (const auto& cost_of : {c10d_cost, mpi_cost, nccl_cost}) {
    EXPECT_EQ(cost_of(sum_of(100), {}, 0, 1), Cost{});
    EXPECT_EQ(cost_of(broadcast_of(10, 0), {}, 0, 1), Cost{});
    EXPECT_EQ(cost_of({}, {}, 0, 1), Cost{});
    EXPECT_EQ(cost_of({.kind = Kind::all_gather, .bytes = 5}, {.sizes = sizes}, 0, 1), Cost{});
  }
}

TEST(Cost, AddsUpToTraffic) {
  Traffic sum;
  add(sum, {2, 150, 140, 130});
  add(sum, {2, 150, 4, 3});
  EXPECT_EQ(sum.sent, 144u);
  EXPECT_EQ(sum.received, 133u);
  EXPECT_EQ(sum.collectives, 2u);
}

// Every byte that is sent is received: over all ranks the two sums are equal. And no rank is done
// before its own bytes have passed.
TEST(Cost, LosesNoBytes) {
  for (int ranks = 1; ranks <= 17; ++ranks) {
    for (const auto& cost_of : {c10d_cost, mpi_cost, nccl_cost}) {
      for (const Call& call : {sum_of(1000), sum_of(20 * kMega), broadcast_of(1000, ranks / 2)}) {
        std::uint64_t sent = 0, received = 0;
        for (int rank = 0; rank < ranks; ++rank) {
          const Cost cost = cost_of(call, {}, rank, ranks);
          sent += cost.sent;
          received += cost.received;
          EXPECT_GE(cost.path, std::max(cost.sent, cost.received)) << ranks << " ranks";
        }
        EXPECT_EQ(sent, received) << call.str() << " of " << ranks << " ranks";
      }
    }
  }
}

// The local engine reports the costs of c10d.
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
              (Cost{2, 600, 600, 600, 0, 1}));
    EXPECT_EQ(cost_of(group.all_gather(ConstBytes(data).first(10), 100, slots, sizes, {})),
              (Cost{1, 30, 30, 30, 0, 1}));
    const Cost pieces = cost_of(group.all_to_all(data, mine, 100, slots, sizes, {}));
    EXPECT_EQ(pieces.sent, 10u - mine[static_cast<std::size_t>(group.rank())]);
    EXPECT_EQ(pieces.received, 3 * mine[static_cast<std::size_t>(group.rank())]);
    EXPECT_EQ(cost_of(group.broadcast(data, 0, {})).path, 1200u);
    EXPECT_EQ(cost_of(group.barrier()), (Cost{.steps = 2, .lead = 1}));
  });
}

}  // namespace
}  // namespace thinwire
