// group_laws.h: what every engine must guarantee. Each law takes a Group, runs on all its
// ranks at once, and throws an Error that says which law failed where. So threads and mpirun
// run the same tests.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "thinwire/comm/cost.h"
#include "thinwire/comm/group.h"
#include "thinwire/comm/reduce.h"
#include "thinwire/core/error.h"
#include "thinwire/core/half.h"
#include "thinwire/core/random.h"

namespace thinwire::laws {

using Buffer = std::vector<std::byte>;

inline constexpr std::size_t kLengths[] = {0, 1, 2, 7, 63, 1001, 35'003};
inline constexpr DType kTypes[] = {DType::f32, DType::f16, DType::bf16, DType::i8, DType::i32};

template <typename... Parts>
void require(const Group& group, bool held, const Parts&... parts) {
  if (!held) fail("rank ", group.rank(), " of ", group.size(), ": law broken: ", parts...);
}

inline std::size_t rank_of(const Group& group) { return static_cast<std::size_t>(group.rank()); }
inline std::size_t size_of_group(const Group& group) {
  return static_cast<std::size_t>(group.size());
}

// The i-th byte of rank r in a test with this seed. Every rank can compute every
// other rank's bytes.
inline std::byte byte_at(std::uint64_t seed, std::size_t rank, std::size_t i) {
  return static_cast<std::byte>(random_at(seed * 1000 + rank, i));
}

inline Buffer bytes_of(std::uint64_t seed, std::size_t rank, std::size_t count) {
  Buffer bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = byte_at(seed, rank, i);
  return bytes;
}

// Element i as the double it stands for, and back.
inline double load(const Buffer& bytes, DType type, std::size_t i) {
  const std::byte* at = bytes.data() + i * size_of(type);
  std::int32_t whole = 0;
  std::uint16_t half = 0;
  float single = 0;
  switch (type) {
    case DType::f32:
      std::memcpy(&single, at, 4);
      return single;
    case DType::i32:
      std::memcpy(&whole, at, 4);
      return whole;
    case DType::i8:
      return static_cast<std::int8_t>(*at);
    case DType::f16:
    case DType::bf16:
      std::memcpy(&half, at, 2);
      return type == DType::f16 ? from_f16(half) : from_bf16(half);
  }
  return 0;
}

inline void store(Buffer& bytes, DType type, std::size_t i, double value) {
  std::byte* at = bytes.data() + i * size_of(type);
  const auto single = static_cast<float>(value);
  const auto whole = static_cast<std::int32_t>(type == DType::i32 || type == DType::i8 ? value : 0);
  const std::uint16_t half = type == DType::f16 ? to_f16(single) : to_bf16(single);
  if (type == DType::f32) std::memcpy(at, &single, 4);
  if (type == DType::i32) std::memcpy(at, &whole, 4);
  if (type == DType::i8) *at = static_cast<std::byte>(whole);
  if (type == DType::f16 || type == DType::bf16) std::memcpy(at, &half, 2);
}

// Throws unless all ranks hold the same bytes. Relies on all_gather, which has its own law.
inline void require_identical(Group& group, const Buffer& bytes, const std::string& what) {
  Buffer slots(bytes.size() * size_of_group(group));
  std::vector<std::size_t> sizes(size_of_group(group));
  group.all_gather(bytes, bytes.size(), slots, sizes, {}).wait();
  for (std::size_t r = 0; r < sizes.size(); ++r) {
    require(group, sizes[r] == bytes.size(), what, ": length of rank ", r);
    const Bytes theirs = Bytes(slots).subspan(r * bytes.size(), bytes.size());
    require(group, std::ranges::equal(theirs, bytes), what, ": bits of rank ", r, " differ");
  }
}

// Small whole numbers are exact in every type, so sum and maximum are known exactly.
inline void all_reduce_is_exact_on_whole_numbers(Group& group, DType type, ReduceOp op,
                                                 std::size_t count) {
  const auto value = [&](std::size_t rank, std::size_t i) {
    return static_cast<double>(random_below(7 + rank, i, 15)) - 7;
  };
  Buffer data(count * size_of(type));
  for (std::size_t i = 0; i < count; ++i) store(data, type, i, value(rank_of(group), i));
  group.all_reduce(data, type, op, {}).wait();
  for (std::size_t i = 0; i < count; ++i) {
    double expected = value(0, i);
    for (std::size_t r = 1; r < size_of_group(group); ++r)
      expected = op == ReduceOp::sum ? expected + value(r, i) : std::max(expected, value(r, i));
    require(group, load(data, type, i) == expected, "all_reduce ", name_of(type), " of ", count,
            ": element ", i, " is ", load(data, type, i), ", expected ", expected);
  }
}

// Magnitudes so different that the order of additions affects the bits.
inline void all_reduce_is_identical_when_it_rounds(Group& group, DType type, std::size_t count) {
  Buffer data(count * size_of(type));
  for (std::size_t i = 0; i < count; ++i) {
    const double scale = std::exp2(random_below(3, i + 77 * rank_of(group), 12));
    const double unit = random_unit(5 + rank_of(group), i) - 0.5;
    store(data, type, i, unit * (type == DType::i8 ? 255 : scale));
  }
  group.all_reduce(data, type, ReduceOp::sum, {}).wait();
  require_identical(group, data, std::string("all_reduce that rounds, ") + name_of(type));
}

// NaNs with different payloads, infinities and both zeros: one result on all ranks, and
// NaN stays NaN.
inline void all_reduce_is_identical_on_special_values(Group& group, ReduceOp op) {
  const auto rank = static_cast<std::uint32_t>(group.rank());
  const float infinity = std::numeric_limits<float>::infinity();
  std::vector<float> values = {
      std::bit_cast<float>(0x7fc00000u + rank + (rank << 31)),  // NaN everywhere, all different
      rank == 0 ? std::numeric_limits<float>::quiet_NaN() : 1.0f,
      rank % 2 ? infinity : -infinity,
      rank % 2 ? -0.0f : 0.0f,
      rank % 2 ? 0.0f : -0.0f,
  };
  const Bytes bytes = std::as_writable_bytes(std::span(values));
  group.all_reduce(bytes, DType::f32, op, {}).wait();
  require(group, std::isnan(values[0]) && std::isnan(values[1]), "a NaN got lost");
  if (op == ReduceOp::max)
    require(group, group.size() == 1 || !std::signbit(values[4]), "max of -0, 0");
  require_identical(group, Buffer(bytes.begin(), bytes.end()), "all_reduce of special values");
}

// c10d adds share s of a buffer in the order of ranks s, s + 1, ..., s - 1, whatever the algorithm:
// by shares, around a ring (from a megabyte per rank on), or swapped between two ranks. The local
// engine does the same.
inline void sums_add_in_the_order_of_shares(Group& group, std::size_t count) {
  const std::size_t n = size_of_group(group), bytes = count * sizeof(float);
  std::vector<float> mine(count);
  for (std::size_t i = 0; i < count; ++i)
    mine[i] = std::exp2(static_cast<float>(random_below(3, i + rank_of(group), 30))) *
              (random_unit(5 + rank_of(group), i) - 0.5f);
  Buffer all(n * bytes), sum;
  std::vector<std::size_t> sizes(n);
  group.all_gather(std::as_bytes(std::span(mine)), bytes, all, sizes, {}).wait();
  for (std::size_t s = 0; s < n; ++s) {
    const auto share = static_cast<int>(s), ranks = group.size();
    const std::size_t start = s == 0 ? 0 : share_end(bytes, sizeof(float), share - 1, ranks);
    const std::size_t end = share_end(bytes, sizeof(float), share, ranks);
    const auto of_rank = [&](std::size_t r) {
      return Bytes(all).subspan(r % n * bytes + start, end - start);
    };
    for (std::size_t r = s + 1; r < s + n; ++r)
      reduce_into(of_rank(s), of_rank(r), DType::f32, ReduceOp::sum);
    sum.insert(sum.end(), of_rank(s).begin(), of_rank(s).end());
  }
  group.all_reduce(std::as_writable_bytes(std::span(mine)), DType::f32, ReduceOp::sum, {}).wait();
  require(group, std::ranges::equal(std::as_bytes(std::span(mine)), sum),
          "order of additions in a sum of ", count);
}

// Sums saturate instead of wrapping, so a vote keeps its sign.
inline void sums_of_i8_saturate(Group& group) {
  Buffer data(2);
  store(data, DType::i8, 0, 100);
  store(data, DType::i8, 1, -100);
  group.all_reduce(data, DType::i8, ReduceOp::sum, {}).wait();
  const double expected = group.size() == 1 ? 100 : 127;
  require(group, load(data, DType::i8, 0) == expected, "i8 sum is ", load(data, DType::i8, 0));
  require(group, load(data, DType::i8, 1) == (group.size() == 1 ? -100 : -128), "i8 negative sum");
}

inline std::size_t uneven(std::size_t slot, std::size_t from, std::size_t to) {
  return slot == 0 ? 0 : (from * 37 + to * 11 + slot) % (slot + 1);
}

inline void all_gather_carries_actual_bytes(Group& group, std::size_t slot) {
  const std::size_t n = size_of_group(group), me = rank_of(group);
  const Buffer mine = bytes_of(slot, me, uneven(slot, me, 0));
  Buffer slots(n * slot);
  std::vector<std::size_t> sizes(n, 12345);
  const Traffic before = group.traffic();
  group.all_gather(mine, slot, slots, sizes, {}).wait();
  std::uint64_t received = 0;
  for (std::size_t r = 0; r < n; ++r) {
    require(group, sizes[r] == uneven(slot, r, 0), "all_gather: size of rank ", r);
    for (std::size_t i = 0; i < sizes[r]; ++i)
      require(group, slots[r * slot + i] == byte_at(slot, r, i), "all_gather: byte ", i, " of ", r);
    if (r != me) received += sizes[r];
  }
  const Traffic after = group.traffic();
  require(group, after.sent - before.sent == mine.size() * (n - 1), "all_gather: bytes sent");
  require(group, after.received - before.received == received, "all_gather: bytes received");
}

inline void all_to_all_carries_actual_bytes(Group& group, std::size_t slot) {
  const std::size_t n = size_of_group(group), me = rank_of(group);
  Buffer mine(n * slot), slots(n * slot);
  std::vector<std::size_t> mine_sizes(n), sizes(n, 12345);
  std::uint64_t sent = 0, received = 0;
  for (std::size_t r = 0; r < n; ++r) {
    mine_sizes[r] = uneven(slot, me, r);
    std::ranges::copy(bytes_of(me, r, mine_sizes[r]), mine.begin() + static_cast<long>(r * slot));
    if (r != me) sent += mine_sizes[r];
  }
  const Traffic before = group.traffic();
  group.all_to_all(mine, mine_sizes, slot, slots, sizes, {}).wait();
  for (std::size_t r = 0; r < n; ++r) {
    require(group, sizes[r] == uneven(slot, r, me), "all_to_all: size of rank ", r);
    for (std::size_t i = 0; i < sizes[r]; ++i)
      require(group, slots[r * slot + i] == byte_at(r, me, i), "all_to_all: byte ", i, " of ", r);
    if (r != me) received += sizes[r];
  }
  const Traffic after = group.traffic();
  require(group, after.sent - before.sent == sent, "all_to_all: bytes sent");
  require(group, after.received - before.received == received, "all_to_all: bytes received");
}

inline void broadcast_copies_the_root(Group& group, std::size_t count) {
  for (std::size_t root = 0; root < size_of_group(group); ++root) {
    Buffer data = bytes_of(count, rank_of(group), count);
    group.broadcast(data, static_cast<int>(root), {}).wait();
    require(group, data == bytes_of(count, root, count), "broadcast of ", count, " from ", root);
  }
}

// A tree of N ranks sends the bytes N - 1 times, whatever the root. Every rank except the root
// receives them once.
inline void broadcast_traffic_is_a_tree(Group& group) {
  const Traffic before = group.traffic();
  const int root = group.size() - 1;
  Buffer data(100);
  group.broadcast(data, root, {}).wait();
  const Traffic after = group.traffic();
  require(group, after.received - before.received == (group.rank() == root ? 0u : 100u),
          "broadcast: bytes received");
  auto sent = static_cast<std::int32_t>(after.sent - before.sent);
  group.all_reduce(std::as_writable_bytes(std::span(&sent, 1)), DType::i32, ReduceOp::sum, {})
      .wait();
  require(group, sent == 100 * (group.size() - 1), "broadcast: bytes sent by all: ", sent);
}

// traffic() adds up the reported cost of each collective, and in total all bytes sent are received.
inline void all_reduce_traffic_is_its_cost(Group& group) {
  Buffer data(size_of_group(group) * 40 + 4);
  const Traffic before = group.traffic();
  Pending pending = group.all_reduce(data, DType::f32, ReduceOp::sum, {});
  pending.wait();
  const Traffic after = group.traffic();
  const Cost& cost = pending.cost();
  require(group, after.sent - before.sent == cost.sent, "all_reduce: bytes sent");
  require(group, after.received - before.received == cost.received, "all_reduce: received");
  require(group, after.collectives - before.collectives == 1, "all_reduce: collectives");
  auto more = static_cast<std::int32_t>(cost.sent) - static_cast<std::int32_t>(cost.received);
  group.all_reduce(std::as_writable_bytes(std::span(&more, 1)), DType::i32, ReduceOp::sum, {})
      .wait();
  require(group, more == 0, "all_reduce: all send ", more, " bytes more than all receive");
}

// Several collectives in flight, completed in a different order on each rank. Half of them are
// polled until done, and some are never waited for.
inline void collectives_may_end_in_any_order(Group& group) {
  const std::size_t n = size_of_group(group), me = rank_of(group), count = 6, slot = 333;
  std::vector<Buffer> gathered(count, Buffer(n * slot));
  std::vector<std::vector<std::size_t>> sizes(count, std::vector<std::size_t>(n));
  std::vector<Buffer> mine;
  std::vector<std::int32_t> sums(count);
  std::vector<Pending> gathers, reduces;
  for (std::size_t c = 0; c < count; ++c) mine.push_back(bytes_of(c, me, slot - me - c));
  for (std::size_t c = 0; c < count; ++c) {
    gathers.push_back(group.all_gather(mine[c], slot, gathered[c], sizes[c], {}));
    sums[c] = static_cast<std::int32_t>(c + me);
    const Bytes sum = std::as_writable_bytes(std::span(&sums[c], 1));
    reduces.push_back(group.all_reduce(sum, DType::i32, ReduceOp::max, {}));
  }
  for (std::size_t c = count; c-- > 0;) {
    if ((me + c) % 2) reduces[c].wait();
    if (c % 3 == 0) {
      while (!gathers[c].done()) std::this_thread::yield();
    }
    gathers[c].wait();
  }
  reduces.clear();
  for (std::size_t c = 0; c < count; ++c) {
    require(group, sums[c] == static_cast<std::int32_t>(c + n - 1), "reduce ", c, " of several");
    for (std::size_t r = 0; r < n; ++r)
      require(group, gathered[c][r * slot] == byte_at(c, r, 0) && sizes[c][r] == slot - r - c,
              "gather ", c, " of several, rank ", r);
  }
}

inline void all_reduce_laws(Group& group) {
  for (const DType type : kTypes) {
    for (const std::size_t count : kLengths) {
      all_reduce_is_exact_on_whole_numbers(group, type, ReduceOp::sum, count);
      all_reduce_is_exact_on_whole_numbers(group, type, ReduceOp::max, count);
      all_reduce_is_identical_when_it_rounds(group, type, count);
    }
  }
  all_reduce_is_identical_on_special_values(group, ReduceOp::sum);
  all_reduce_is_identical_on_special_values(group, ReduceOp::max);
  sums_of_i8_saturate(group);
  all_reduce_traffic_is_its_cost(group);
}

inline void gather_laws(Group& group) {
  for (const std::size_t slot : kLengths) {
    all_gather_carries_actual_bytes(group, slot);
    all_to_all_carries_actual_bytes(group, slot);
  }
}

inline void broadcast_laws(Group& group) {
  for (const std::size_t count : kLengths) broadcast_copies_the_root(group, count);
  broadcast_traffic_is_a_tree(group);
}

inline void order_laws(Group& group) {
  for (int i = 0; i < 20; ++i) group.barrier().wait();
  for (int i = 0; i < 5; ++i) collectives_may_end_in_any_order(group);
}

}  // namespace thinwire::laws
