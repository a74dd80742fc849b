// cost.cc: steps and bytes of each message pattern.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/comm/cost.h"

#include <algorithm>
#include <bit>
#include <vector>

namespace thinwire {
namespace {

// Of a binomial tree: ceil(log2 ranks).
int depth_of(int ranks) {
  return static_cast<int>(std::bit_width(static_cast<unsigned>(ranks - 1)));
}

// A tree of messages. Places count from the root, and a parent's is below its children's.
struct Tree {
  std::vector<std::uint64_t> children;  // by place
  std::uint64_t path = 0;               // messages one after the other until the last has its own

  // The messages of one parent share its uplink: its children all have theirs when the last one has.
  Tree(int ranks, unsigned (*parent_of)(unsigned place)) {
    const auto count = static_cast<unsigned>(ranks);
    children.resize(count);
    for (unsigned place = 1; place < count; ++place) ++children[parent_of(place)];
    std::vector<std::uint64_t> arrival(count);
    for (unsigned place = 1; place < count; ++place) {
      const unsigned parent = parent_of(place);
      arrival[place] = arrival[parent] + children[parent];
    }
    path = *std::ranges::max_element(arrival);
  }

  // Of a broadcast.
  Cost cost(std::size_t bytes, int place) const {
    const auto ranks = static_cast<int>(children.size());
    return {static_cast<std::uint64_t>(depth_of(ranks)), path * bytes,
            children[static_cast<std::size_t>(place)] * bytes, place == 0 ? 0 : bytes};
  }
};

// Binomial trees: a place leads to that without its lowest set bit, or without its highest.
unsigned without_lowest(unsigned place) { return place & (place - 1); }
unsigned without_highest(unsigned place) { return place - std::bit_floor(place); }
unsigned to_root(unsigned) { return 0; }

std::uint64_t sum_without(std::span<const std::size_t> sizes, int rank) {
  std::uint64_t sum = 0;
  for (std::size_t r = 0; r < sizes.size(); ++r)
    if (r != static_cast<std::size_t>(rank)) sum += sizes[r];
  return sum;
}

int place_from(int root, int rank, int ranks) { return (rank - root + ranks) % ranks; }

std::uint64_t unsigned_of(int number) { return static_cast<std::uint64_t>(number); }

}  // namespace

std::size_t share_end(std::size_t bytes, std::size_t element, int share, int ranks) {
  const auto count = static_cast<std::size_t>(ranks), last = static_cast<std::size_t>(share) + 1;
  const std::size_t elements = bytes / element;
  return element * (last * (elements / count) + std::min(last, elements % count));
}

std::size_t segments_of(std::size_t share_bytes) {
  return std::clamp<std::size_t>(share_bytes >> 18, 1, 8);  // of 256 kB, at most 8
}

bool takes_ring(std::size_t bytes, int ranks) {
  return ranks > 2 && bytes / static_cast<std::size_t>(ranks) >= std::size_t{1} << 20;
}

Cost sum_cost(std::size_t bytes, std::size_t element, int rank, int ranks) {
  if (!takes_ring(bytes, ranks)) return shares_cost(bytes, element, rank, ranks);
  const std::size_t share = share_end(bytes, element, 0, ranks);
  return ring_cost(bytes, ranks, share / segments_of(share));
}

Cost shares_cost(std::size_t bytes, std::size_t element, int rank, int ranks) {
  if (ranks == 1) return {};
  if (ranks == 2) return {1, bytes, bytes, bytes};
  // Our part of every other share and, to every other rank, the sum of our own.
  const auto moved = [&](std::size_t share) { return bytes + (unsigned_of(ranks) - 2) * share; };
  const std::size_t begin = rank == 0 ? 0 : share_end(bytes, element, rank - 1, ranks);
  const std::uint64_t own = moved(share_end(bytes, element, rank, ranks) - begin);
  return {2, moved(share_end(bytes, element, 0, ranks)), own, own};
}

Cost ring_cost(std::size_t bytes, int ranks, std::size_t piece) {
  const std::uint64_t count = unsigned_of(ranks), steps = 2 * (count - 1);
  const std::uint64_t moved = (steps * bytes + count - 1) / count;
  return {steps, moved, moved, moved, piece};
}

Cost mpi_reduce_cost(std::size_t bytes, int rank, int ranks) {
  const Cost there = Tree(ranks, without_lowest).cost(bytes, rank);  // in the other direction
  const Cost back = Tree(ranks, without_highest).cost(bytes, rank);
  return {there.steps + back.steps, there.steps * bytes + back.path, there.received + back.sent,
          there.sent + back.received};
}

Cost tree_cost(std::size_t bytes, int root, int rank, int ranks) {
  return Tree(ranks, without_lowest).cost(bytes, place_from(root, rank, ranks));
}

Cost mpi_broadcast_cost(std::size_t bytes, int root, int rank, int ranks) {
  // The root changes places with rank 0.
  const int place = rank == root ? 0 : rank == 0 ? root : rank;
  Cost cost = Tree(ranks, ranks > 4 ? without_highest : to_root).cost(bytes, place);
  cost.steps = mpi_reduce_cost(0, rank, ranks).steps;  // of the agreement beside it, which has more
  return cost;
}

Cost chain_cost(std::size_t bytes, int root, int rank, int ranks) {
  if (ranks == 1) return {};
  const int place = place_from(root, rank, ranks);
  return {unsigned_of(ranks) - 1, bytes, place == ranks - 1 ? 0 : bytes, place == 0 ? 0 : bytes};
}

Cost gather_cost(std::span<const std::size_t> sizes, int rank) {
  const std::uint64_t others = sizes.size() - 1;
  if (others == 0) return {};
  return {1, others * *std::ranges::max_element(sizes),
          others * sizes[static_cast<std::size_t>(rank)], sum_without(sizes, rank)};
}

Cost pieces_cost(std::span<const std::size_t> sent, std::span<const std::size_t> received,
                 int rank) {
  if (sent.size() == 1) return {};
  const std::uint64_t out = sum_without(sent, rank), in = sum_without(received, rank);
  return {1, std::max(out, in), out, in};
}

Cost rounds_cost(int ranks) { return {unsigned_of(depth_of(ranks)), 0, 0, 0}; }

Cost after_agreement(Cost cost, int ranks) {
  if (ranks > 1) ++cost.steps;
  return cost;
}

void add(Traffic& sum, const Cost& more) {
  sum.sent += more.sent;
  sum.received += more.received;
  ++sum.collectives;
}

}  // namespace thinwire
