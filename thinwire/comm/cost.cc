// cost.cc: steps and bytes of each message pattern, and which engine uses which pattern.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/comm/cost.h"

#include <algorithm>
#include <bit>
#include <vector>

#include "thinwire/comm/whole.h"

namespace thinwire {
namespace {

std::uint64_t unsigned_of(int number) { return static_cast<std::uint64_t>(number); }

// The depth of a binomial tree: ceil(log2 ranks).
std::uint64_t depth_of(int ranks) {
  return static_cast<std::uint64_t>(std::bit_width(static_cast<unsigned>(ranks - 1)));
}

// A tree of messages. Places count from the root, and a parent's place is below its children's.
struct Tree {
  std::vector<std::uint64_t> children;  // by place
  std::uint64_t path = 0;               // messages in sequence until the last rank has its own

  // The messages of one parent share its uplink, so all its children are done when the last one is.
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

  // The cost of a broadcast.
  Cost cost(std::size_t bytes, int place) const {
    return {depth_of(static_cast<int>(children.size())), path * bytes,
            children[static_cast<std::size_t>(place)] * bytes, place == 0 ? 0 : bytes};
  }
};

// Binomial trees: the parent of a place is the place without its lowest set bit, or
// without its highest.
unsigned without_lowest(unsigned place) { return place & (place - 1); }
unsigned without_highest(unsigned place) { return place - std::bit_floor(place); }
unsigned to_root(unsigned) { return 0; }

// Messages of this length and more share links unevenly; those of sums travel in segments.
constexpr std::size_t kLongMessage = std::size_t{32} << 10;

// Where several TCP flows meet at a link they share it unevenly: some end early, and the link
// idles. Long messages to 3 ranks took 10 to 17 % longer than to one, to 2 ranks 7 to 9 %
// (bench/emulated_check.py at 100 Mbit/s; more ranks were not measured).
std::uint64_t uneven(std::uint64_t path, std::size_t message, int ranks) {
  return ranks > 2 && message >= kLongMessage ? path + path / 10 : path;
}

// Every rank sums one share and sends the sum to all others: two steps. Two ranks swap the whole
// buffer in one step.
Cost shares(std::size_t bytes, std::size_t element, int rank, int ranks) {
  if (ranks == 2) return {1, bytes, bytes, bytes};
  // Our part of every other share and, to every other rank, the sum of our own share.
  const auto moved = [&](std::size_t share) { return bytes + (unsigned_of(ranks) - 2) * share; };
  const std::size_t begin = rank == 0 ? 0 : share_end(bytes, element, rank - 1, ranks);
  const std::uint64_t own = moved(share_end(bytes, element, rank, ranks) - begin);
  const std::size_t longest = share_end(bytes, element, 0, ranks);
  const std::size_t segments = segments_of(longest, ranks);
  // A segment of the sum leaves when all others have sent theirs.
  const std::uint64_t piece = segments > 1 ? (unsigned_of(ranks) - 1) * longest / segments : 0;
  return {2, uneven(moved(longest), longest, ranks), own, own, piece};
}

// From neighbour to neighbour. The next step begins once `piece` bytes of a step have arrived.
Cost ring(std::size_t bytes, int ranks, std::size_t piece) {
  const std::uint64_t count = unsigned_of(ranks), steps = 2 * (count - 1);
  const std::uint64_t moved = (steps * bytes + count - 1) / count;
  return {steps, moved, moved, moved, piece};
}

std::uint64_t sum_without(std::span<const std::size_t> sizes, int rank) {
  std::uint64_t sum = 0;
  for (std::size_t r = 0; r < sizes.size(); ++r)
    if (r != static_cast<std::size_t>(rank)) sum += sizes[r];
  return sum;
}

// All messages at once. In a gather all ranks wait for the largest piece. In an all-to-all a rank
// knows only its own pieces, and its busier direction counts.
Cost direct(const Call& call, const Operands& operands, int rank) {
  const std::span<const std::size_t> sizes = operands.sizes;
  const std::uint64_t received = sum_without(sizes, rank);
  if (call.kind == Kind::all_to_all) {
    const std::uint64_t sent = sum_without(operands.mine_sizes, rank);
    return {1, std::max(sent, received), sent, received};
  }
  const std::uint64_t others = sizes.size() - 1;
  return {1, others * *std::ranges::max_element(sizes),
          others * sizes[static_cast<std::size_t>(rank)], received};
}

// In pieces so small that all links work at once: the whole buffer passes once, whatever the number
// of steps.
Cost chain(std::size_t bytes, int place, int ranks) {
  return {unsigned_of(ranks) - 1, bytes, place == ranks - 1 ? 0 : bytes, place == 0 ? 0 : bytes};
}

int place_from(int root, int rank, int ranks) { return (rank - root + ranks) % ranks; }

// The longest message of a gather or an all-to-all, as far as this rank knows.
std::size_t longest(const Operands& operands) {
  const std::size_t received = *std::ranges::max_element(operands.sizes);
  return operands.mine_sizes.empty()
             ? received
             : std::max(received, *std::ranges::max_element(operands.mine_sizes));
}

// The number of latencies of one message.
std::uint64_t mpi_latencies(std::size_t bytes) { return bytes > 65536 ? 3 : 1; }

Cost mpi_sum(std::size_t bytes, int rank, int ranks) {
  const Cost there = Tree(ranks, without_lowest).cost(bytes, rank);  // reversed direction
  const Cost back = Tree(ranks, without_highest).cost(bytes, rank);
  return {mpi_latencies(bytes) * (there.steps + back.steps), there.steps * bytes + back.path,
          there.received + back.sent, there.sent + back.received};
}

Cost mpi_broadcast(const Call& call, int rank, int ranks) {
  // The root swaps places with rank 0.
  const int place = rank == call.root ? 0 : rank == 0 ? call.root : rank;
  const bool flat = ranks <= 4;
  Cost cost = Tree(ranks, flat ? to_root : without_highest).cost(call.bytes, place);
  const std::uint64_t own = mpi_latencies(call.bytes) * (flat ? 1 : cost.steps);
  cost.steps = std::max(own, mpi_sum(0, rank, ranks).steps);  // or those of the agreement beside it
  return cost;
}

Cost nccl_sum(const Call& call, int ranks) {
  const std::size_t elements = call.bytes / size_of(call.dtype);
  const bool wide = needs_whole(call.dtype, call.op);
  return ring(wide ? elements * sizeof(std::int32_t) : call.bytes, ranks, 0);
}

}  // namespace

Cost c10d_cost(const Call& call, const Operands& operands, int rank, int ranks) {
  if (ranks == 1) return {};
  const auto pattern = [&]() -> Cost {
    switch (call.kind) {
      case Kind::all_reduce: {
        const std::size_t element = size_of(call.dtype);
        if (!takes_ring(call.bytes, ranks)) return shares(call.bytes, element, rank, ranks);
        const std::size_t share = share_end(call.bytes, element, 0, ranks);
        return ring(call.bytes, ranks, share / segments_of(share, ranks));
      }
      case Kind::all_gather:
      case Kind::all_to_all: {
        Cost cost = direct(call, operands, rank);
        cost.path = uneven(cost.path, longest(operands), ranks);
        return cost;
      }
      case Kind::broadcast:
        return Tree(ranks, without_lowest).cost(call.bytes, place_from(call.root, rank, ranks));
      case Kind::barrier:
        return {.steps = depth_of(ranks)};
    }
    return {};
  };
  Cost cost = pattern();
  cost.lead = 1;
  return cost;
}

Cost mpi_cost(const Call& call, const Operands& operands, int rank, int ranks) {
  if (ranks == 1) return {};
  switch (call.kind) {
    case Kind::all_reduce:
      return mpi_sum(call.bytes, rank, ranks);
    case Kind::all_gather:
    case Kind::all_to_all: {
      Cost cost = direct(call, operands, rank);
      cost.lead = mpi_latencies(longest(operands)) - 1;
      return cost;
    }
    case Kind::broadcast:
      return mpi_broadcast(call, rank, ranks);
    case Kind::barrier:
      return mpi_sum(0, rank, ranks);
  }
  return {};
}

Cost nccl_cost(const Call& call, const Operands& operands, int rank, int ranks) {
  if (ranks == 1) return {};
  const auto pattern = [&]() -> Cost {
    if (call.bytes == 0) return {};
    switch (call.kind) {
      case Kind::all_reduce:
        return nccl_sum(call, ranks);
      case Kind::all_gather:
      case Kind::all_to_all:
        return direct(call, operands, rank);
      case Kind::broadcast:
        return chain(call.bytes, place_from(call.root, rank, ranks), ranks);
      case Kind::barrier:
        return {};
    }
    return {};
  };
  Cost cost = pattern();
  cost.lead = 2;
  return cost;
}

std::size_t share_end(std::size_t bytes, std::size_t element, int share, int ranks) {
  const auto count = static_cast<std::size_t>(ranks), last = static_cast<std::size_t>(share) + 1;
  const std::size_t elements = bytes / element;
  return element * (last * (elements / count) + std::min(last, elements % count));
}

std::size_t segments_of(std::size_t share_bytes, int ranks) {
  const std::size_t least = ranks > 2 && share_bytes >= kLongMessage ? 2 : 1;
  return std::clamp<std::size_t>(share_bytes >> 18, least, 8);  // about 256 kB each
}

bool takes_ring(std::size_t bytes, int ranks) {
  return ranks > 2 && bytes / static_cast<std::size_t>(ranks) >= std::size_t{1} << 20;
}

void add(Traffic& sum, const Cost& more) {
  sum.sent += more.sent;
  sum.received += more.received;
  ++sum.collectives;
}

}  // namespace thinwire
