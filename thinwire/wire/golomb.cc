// golomb.cc: choosing a divisor, writing and reading Golomb codes.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/wire/golomb.h"

#include <algorithm>
#include <bit>

#include "thinwire/wire/bits.h"
#include "thinwire/wire/divide.h"

namespace thinwire {
namespace {

// A divisor and what follows from it: remainders below `short_ones` take `low` bits, the others one
// more. For a power of two all are short: plain binary.
struct Golomb {
  explicit Golomb(std::uint64_t m)
      : divisor(m),
        low(static_cast<unsigned>(std::bit_width(m)) - 1),
        short_ones((std::uint64_t{2} << low) - m),
        divide(m) {}

  std::uint64_t divisor;
  unsigned low;
  std::uint64_t short_ones;
  Divider divide;
};

// The canonical parameters in order of divisor are numbered 0, 1, 2, ...: 1 to 7 exactly, then
// eight per octave.
constexpr int first_octave_rank = 7, first_octave_code = 3 << 3, last_rank = 255 - 24 + 7;

// The parameter of the largest divisor that is at most m >= 1.
std::uint8_t code_of(std::uint64_t m) {
  const unsigned exponent = static_cast<unsigned>(std::bit_width(m)) - 1;
  // The analyzer takes m for 0. NOLINTNEXTLINE(clang-analyzer-core.UndefinedBinaryOperatorResult)
  return static_cast<std::uint8_t>((exponent << 3) + ((m << 3) >> exponent) - 8);
}

int rank_of(std::uint8_t code) {
  if (code >= first_octave_code) return code - first_octave_code + first_octave_rank;
  return static_cast<int>(golomb_divisor(code)) - 1;
}

std::uint8_t code_at(int rank) {
  if (rank < first_octave_rank) return code_of(static_cast<std::uint64_t>(rank) + 1);
  return static_cast<std::uint8_t>(rank - first_octave_rank + first_octave_code);
}

// Exact bits of every stride-th gap.
std::uint64_t bits_of(std::span<const std::uint32_t> indices, std::uint8_t code,
                      std::size_t stride) {
  const Golomb golomb(golomb_divisor(code));
  std::uint64_t bits = 0;
  const auto add = [&](std::uint32_t gap) {
    const std::uint32_t quotient = golomb.divide.quotient(gap);
    bits += quotient + (gap - quotient * golomb.divisor >= golomb.short_ones ? 1u : 0u);
  };
  add(indices[0]);
  for (std::size_t i = stride; i < indices.size(); i += stride)
    add(indices[i] - indices[i - 1] - 1);
  return bits + ((indices.size() - 1) / stride + 1) * (1 + golomb.low);
}

struct Candidate {
  int rank;
  std::uint64_t bits;
};

// Walks from `best` in steps of `step` ranks while that saves bits. Costs are nearly convex in the
// rank, so this also finds the minimum for clustered supports, whose best divisor is far from the
// mean.
Candidate descend(std::span<const std::uint32_t> indices, Candidate best, int step,
                  std::size_t stride) {
  for (const int direction : {-step, step}) {
    const int start = best.rank;
    for (;;) {
      const int next = std::clamp(best.rank + direction, 0, last_rank);
      if (next == best.rank) break;
      const std::uint64_t bits = bits_of(indices, code_at(next), stride);
      if (bits >= best.bits) break;
      best = {next, bits};
    }
    if (best.rank != start) break;  // the other side is uphill
  }
  return best;
}

// The rank of the divisor nearest below ln 2 times the mean gap, which is best for a uniform
// support.
int uniform_rank(std::uint64_t count, std::uint64_t extent) {
  constexpr std::uint64_t ln2 = 45426;  // times 2^16
  return rank_of(code_of(std::max<std::uint64_t>(1, extent * ln2 / (count << 16))));
}

constexpr std::size_t sample = 256;  // gaps that the coarse part of the search looks at

Candidate search(std::span<const std::uint32_t> indices, std::uint32_t extent) {
  const std::size_t stride = indices.size() / sample | 1;  // odd: avoids resonance with patterns
  Candidate best{uniform_rank(indices.size(), extent), 0};
  best.bits = bits_of(indices, code_at(best.rank), stride);
  for (const int step : {8, 2}) best = descend(indices, best, step, stride);
  if (stride > 1) best.bits = bits_of(indices, code_at(best.rank), 1);
  return descend(indices, best, 1, 1);
}

Status out_of_range() { return {Code::bad_value, "golomb: an index is outside its chunk"}; }

}  // namespace

std::uint64_t golomb_divisor(std::uint8_t parameter) {
  const std::uint64_t eighths = std::uint64_t{8u + (parameter & 7u)} << (parameter >> 3);
  return (eighths & 7) == 0 ? eighths >> 3 : 0;
}

std::uint64_t golomb_bits(std::span<const std::uint32_t> indices, std::uint8_t parameter) {
  return bits_of(indices, parameter, 1);
}

GolombPlan golomb_plan(std::span<const std::uint32_t> indices, std::uint32_t extent) {
  const Candidate best = search(indices, extent);
  const std::uint64_t count = indices.size();
  const unsigned low = mean_gap_log2(count, extent);
  if (best.bits <= count * (low + 1) + ((extent - count) >> low))
    return {code_at(best.rank), best.bits};
  const auto rice = static_cast<std::uint8_t>(low << 3);  // keeps the bound for every support
  return {rice, bits_of(indices, rice, 1)};
}

void golomb_encode(std::span<const std::uint32_t> indices, std::uint8_t parameter, Bytes out) {
  const Golomb golomb(golomb_divisor(parameter));
  BitWriter writer(out);
  std::uint32_t next = 0;  // the smallest index that may come
  for (const std::uint32_t index : indices) {
    const std::uint32_t gap = index - next;
    const std::uint64_t quotient = golomb.divide.quotient(gap);
    const std::uint64_t remainder = gap - quotient * golomb.divisor;
    const bool is_long = remainder >= golomb.short_ones;
    // A long one is sent as its upper bits, from which the reader sees that one more bit follows.
    const std::uint64_t shifted = remainder + golomb.short_ones;
    const std::uint64_t tail = is_long ? (shifted >> 1) | ((shifted & 1) << golomb.low) : remainder;
    const unsigned tail_bits = golomb.low + (is_long ? 1 : 0);
    if (quotient + 1 + tail_bits <= BitWriter::most) {
      writer.put((tail << 1 | 1) << quotient, static_cast<unsigned>(quotient) + 1 + tail_bits);
    } else {
      writer.put_unary(quotient);
      writer.put(tail, tail_bits);
    }
    next = index + 1;
  }
}

Status golomb_decode(std::uint8_t parameter, ConstBytes bytes, std::uint32_t extent,
                     std::span<std::uint32_t> out) {
  const std::uint64_t divisor = golomb_divisor(parameter);
  if (divisor == 0) return {Code::bad_value, "golomb: divisor code is not canonical"};
  const Golomb golomb(divisor);
  const std::uint64_t low_mask = (std::uint64_t{1} << golomb.low) - 1;
  BitReader reader(bytes);
  std::uint64_t next = 0;
  for (std::uint32_t& index : out) {
    std::uint64_t word = reader.peek();
    std::uint64_t quotient = 0;
    while ((word & ((std::uint64_t{1} << 56) - 1)) == 0) {
      quotient += 56;
      reader.skip(56);
      if (reader.overrun()) return {Code::truncated, "golomb: bytes end inside the indices"};
      word = reader.peek();
    }
    const auto zeros = static_cast<unsigned>(std::countr_zero(word));
    quotient += zeros;
    reader.skip(zeros + 1);
    word = zeros + 1 + golomb.low + 1 <= BitReader::most ? word >> (zeros + 1) : reader.peek();
    const std::uint64_t head = word & low_mask;
    const std::uint64_t more = (word >> golomb.low) & 1;
    const bool is_long = head >= golomb.short_ones;
    const std::uint64_t remainder = is_long ? 2 * head + more - golomb.short_ones : head;
    reader.skip(golomb.low + (is_long ? 1 : 0));
    if (quotient > extent) return out_of_range();
    const std::uint64_t value = next + quotient * divisor + remainder;
    if (value >= extent) return out_of_range();
    index = static_cast<std::uint32_t>(value);
    next = value + 1;
  }
  if (reader.overrun()) return {Code::truncated, "golomb: bytes end inside the indices"};
  if (reader.bytes_used() != bytes.size())
    return {Code::bad_value, "golomb: bytes behind the last index"};
  if (!reader.padding_is_zero()) return {Code::bad_value, "golomb: padding is not zero"};
  return {};
}

}  // namespace thinwire
