// reduce.cc: one loop per element type and operation.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/comm/reduce.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "thinwire/comm/cost.h"
#include "thinwire/core/half.h"
#include "thinwire/kernels/cast.h"

namespace thinwire {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

float sum_of(float a, float b) {
  const float sum = a + b;
  return sum == sum ? sum : kNan;
}

float max_of(float a, float b) {
  // Equal operands differ at most in the sign of zero. +0 wins, which is the AND of the bits.
  const auto both = std::bit_cast<std::uint32_t>(a) & std::bit_cast<std::uint32_t>(b);
  const float larger = a > b ? a : a < b ? b : std::bit_cast<float>(both);
  return a == a && b == b ? larger : kNan;
}

std::int8_t sum_of(std::int8_t a, std::int8_t b) {
  return static_cast<std::int8_t>(std::clamp(a + b, -128, 127));
}

std::int32_t sum_of(std::int32_t a, std::int32_t b) {
  return static_cast<std::int32_t>(static_cast<std::uint32_t>(a) + static_cast<std::uint32_t>(b));
}

template <typename Integer>
Integer max_of(Integer a, Integer b) {
  return std::max(a, b);
}

// Loads and stores use memcpy, because the callers' bytes need not be aligned. Compilers turn it
// into plain vector moves.
template <typename T, typename Combine>
void loop(Bytes into, ConstBytes from, Combine combine) {
  for (std::size_t at = 0; at < into.size(); at += sizeof(T)) {
    T a, b;
    std::memcpy(&a, into.data() + at, sizeof(T));
    std::memcpy(&b, from.data() + at, sizeof(T));
    a = combine(a, b);
    std::memcpy(into.data() + at, &a, sizeof(T));
  }
}

template <typename T>
void loop_plain(Bytes into, ConstBytes from, ReduceOp op) {
  if (op == ReduceOp::sum)
    loop<T>(into, from, [](T a, T b) { return sum_of(a, b); });
  else
    loop<T>(into, from, [](T a, T b) { return max_of(a, b); });
}

bool is_aligned(const void* data, std::size_t to) {
  return reinterpret_cast<std::uintptr_t>(data) % to == 0;
}

template <auto widen, auto narrow, auto add>
void loop_half(Bytes into, ConstBytes from, ReduceOp op) {
  using Bits = std::uint16_t;
  if (op == ReduceOp::max) {
    loop<Bits>(into, from, [](Bits a, Bits b) { return narrow(max_of(widen(a), widen(b))); });
  } else if (is_aligned(into.data(), sizeof(Bits)) && is_aligned(from.data(), sizeof(Bits))) {
    add(reinterpret_cast<Bits*>(into.data()), reinterpret_cast<const Bits*>(from.data()),
        into.size() / sizeof(Bits));
  } else {
    loop<Bits>(into, from, [](Bits a, Bits b) { return narrow(widen(a) + widen(b)); });
  }
}

}  // namespace

void reduce_into(Bytes into, ConstBytes from, DType dtype, ReduceOp op) {
  switch (dtype) {
    case DType::f32:
      return loop_plain<float>(into, from, op);
    case DType::f16:
      return loop_half<from_f16, to_f16, add_f16>(into, from, op);
    case DType::bf16:
      return loop_half<from_bf16, to_bf16, add_bf16>(into, from, op);
    case DType::i8:
      return loop_plain<std::int8_t>(into, from, op);
    case DType::i32:
      return loop_plain<std::int32_t>(into, from, op);
  }
}

namespace {

using Give = std::function<void(std::size_t at, ConstBytes result)>;

// Combines bytes [from, to) in the order of ranks first, first + 1, ..., first - 1.
void reduce_share(std::span<const ConstBytes> parts, std::size_t first, std::size_t from,
                  std::size_t to, DType dtype, ReduceOp op, const Give& give) {
  constexpr std::size_t block = 1 << 16;  // stays in cache while all ranks add to it
  std::vector<std::byte> memory(std::min(block, to - from));
  for (std::size_t at = from; at < to; at += block) {
    const Bytes sum = Bytes(memory).first(std::min(block, to - at));
    std::ranges::copy(parts[first].subspan(at, sum.size()), sum.begin());
    for (std::size_t r = first + 1; r < first + parts.size(); ++r)
      reduce_into(sum, parts[r % parts.size()].subspan(at, sum.size()), dtype, op);
    give(at, sum);
  }
}

}  // namespace

void reduce_ranks(std::span<const ConstBytes> parts, DType dtype, ReduceOp op, const Give& give) {
  const auto ranks = static_cast<int>(parts.size());
  std::size_t from = 0;
  for (int share = 0; share < ranks; ++share) {
    const std::size_t to = share_end(parts[0].size(), size_of(dtype), share, ranks);
    reduce_share(parts, static_cast<std::size_t>(share), from, to, dtype, op, give);
    from = to;
  }
}

}  // namespace thinwire
