// golomb_rule.h: the Golomb code of one gap, and the search for the best divisor, for host and CUDA
// code.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>

#include "thinwire/core/bit_count.h"
#include "thinwire/core/cuda.h"
#include "thinwire/core/status.h"
#include "thinwire/wire/bits.h"
#include "thinwire/wire/divide.h"

namespace thinwire {

// The divisor of a parameter byte: (8 + low 3 bits) * 2^(high 5 bits) / 8. Returns 0 when that is
// not an integer: such a byte is not canonical and never occurs in a frame.
THINWIRE_HD constexpr std::uint64_t golomb_divisor(std::uint8_t parameter) {
  const std::uint64_t eighths = std::uint64_t{8u + (parameter & 7u)} << (parameter >> 3);
  return (eighths & 7) == 0 ? eighths >> 3 : 0;
}

// A divisor and what follows from it: remainders below `short_ones` take `low` bits, the others one
// more. For a power of two all are short: plain binary.
struct Golomb {
  THINWIRE_HD explicit Golomb(std::uint64_t m)
      : divisor(m), low(bit_width(m) - 1), short_ones((std::uint64_t{2} << low) - m), divide(m) {}

  // `zeros` zeros, a one, and the low `tail_bits` bits of `tail`.
  struct Codeword {
    std::uint64_t zeros, tail;
    unsigned tail_bits;
  };
  THINWIRE_HD Codeword codeword(std::uint32_t gap) const {
    const std::uint64_t quotient = divide.quotient(gap);
    const std::uint64_t remainder = gap - quotient * divisor;
    if (remainder < short_ones) return {quotient, remainder, low};
    // A long one is sent as its upper bits, from which the reader sees that one more bit follows.
    const std::uint64_t shifted = remainder + short_ones;
    return {quotient, (shifted >> 1) | ((shifted & 1) << low), low + 1};
  }

  // The bits of a codeword beyond the 1 + low that every one has.
  THINWIRE_HD std::uint64_t extra_bits(std::uint32_t gap) const {
    const std::uint32_t quotient = divide.quotient(gap);
    return quotient + (gap - quotient * divisor >= short_ones ? 1u : 0u);
  }

  // The remainder whose tail starts at the lowest bit of `word`, and the bits of the tail.
  struct Tail {
    std::uint64_t remainder;
    unsigned bits;
  };
  THINWIRE_HD Tail tail(std::uint64_t word) const {
    const std::uint64_t head = word & ((std::uint64_t{1} << low) - 1);
    if (head < short_ones) return {head, low};
    return {2 * head + ((word >> low) & 1) - short_ones, low + 1};
  }

  std::uint64_t divisor;
  unsigned low;
  std::uint64_t short_ones;
  Divider divide;
};

// Reads one gap. Refuses a quotient that no index of a chunk can have. `Reader` is a BitReader, or
// does the same in its own way.
template <typename Reader>
THINWIRE_HD Status golomb_read(Reader& reader, const Golomb& golomb, std::uint32_t extent,
                               std::uint64_t& gap) {
  std::uint64_t word = reader.peek();
  std::uint64_t quotient = 0;
  while ((word & ((std::uint64_t{1} << 56) - 1)) == 0) {
    quotient += 56;
    reader.skip(56);
    if (reader.overrun()) return {Code::truncated, "golomb: bytes end inside the indices"};
    word = reader.peek();
  }
  const auto zeros = countr_zero(word);
  quotient += zeros;
  reader.skip(zeros + 1);
  word = zeros + 1 + golomb.low + 1 <= Reader::most ? word >> (zeros + 1) : reader.peek();
  const Golomb::Tail tail = golomb.tail(word);
  reader.skip(tail.bits);
  if (quotient > extent) return {Code::bad_value, "golomb: an index is outside its chunk"};
  gap = quotient * golomb.divisor + tail.remainder;
  return {};
}

struct GolombPlan {
  std::uint8_t parameter = 0;
  std::uint64_t bits = 0;  // exact
};

// The search for a divisor. `cost(parameter, stride)` is the number of bits of every stride-th gap.
// In a CUDA block it is a sum over the block's threads: all of them take part in the search and
// follow the same path through it.
template <typename Cost>
class GolombSearch {
 public:
  THINWIRE_HD GolombSearch(std::uint64_t count, std::uint32_t extent, const Cost& cost)
      : count_(count), extent_(extent), cost_(cost) {}

  // The cheapest divisor near the one that suits the mean gap, or downhill from it; never above
  // count * (low + 1) + (extent - count) / 2^low bits with low = mean_gap_log2().
  THINWIRE_HD GolombPlan run() const {
    const Candidate best = search();
    const unsigned low = mean_gap_log2(count_, extent_);
    if (best.bits <= count_ * (low + 1) + ((extent_ - count_) >> low))
      return {code_at(best.rank), best.bits};
    const auto rice = static_cast<std::uint8_t>(low << 3);  // keeps the bound for every support
    return {rice, cost_(rice, 1)};
  }

 private:
  struct Candidate {
    int rank;
    std::uint64_t bits;
  };

  // The canonical parameters in order of divisor are numbered 0, 1, 2, ...: 1 to 7 exactly, then
  // eight per octave.
  static constexpr int first_octave_rank = 7, first_octave_code = 3 << 3, last_rank = 255 - 24 + 7;
  static constexpr std::uint64_t sample = 256;  // gaps that the coarse part looks at

  // The parameter of the largest divisor that is at most m >= 1.
  THINWIRE_HD static std::uint8_t code_of(std::uint64_t m) {
    const unsigned exponent = bit_width(m) - 1;
    // The analyzer takes m for 0.
    // NOLINTNEXTLINE(clang-analyzer-core.UndefinedBinaryOperatorResult)
    return static_cast<std::uint8_t>((exponent << 3) + ((m << 3) >> exponent) - 8);
  }
  THINWIRE_HD static int rank_of(std::uint8_t code) {
    if (code >= first_octave_code) return code - first_octave_code + first_octave_rank;
    return static_cast<int>(golomb_divisor(code)) - 1;
  }
  THINWIRE_HD static std::uint8_t code_at(int rank) {
    if (rank < first_octave_rank) return code_of(static_cast<std::uint64_t>(rank) + 1);
    return static_cast<std::uint8_t>(rank - first_octave_rank + first_octave_code);
  }

  // The rank of the divisor nearest below ln 2 times the mean gap, which is best for a uniform
  // support.
  THINWIRE_HD int uniform_rank() const {
    const std::uint64_t ln2 = 45426;  // times 2^16
    const std::uint64_t divisor = extent_ * ln2 / (count_ << 16);
    return rank_of(code_of(divisor < 1 ? 1 : divisor));
  }

  // Walks from `best` in steps of `step` ranks while that saves bits. Costs are nearly convex in
  // the rank, so this also finds the minimum for clustered supports, whose best divisor is far from
  // the mean.
  THINWIRE_HD Candidate descend(Candidate best, int step, std::uint64_t stride) const {
    for (int side = 0; side < 2; ++side) {
      const int start = best.rank, direction = side == 0 ? -step : step;
      for (;;) {
        int next = best.rank + direction;
        next = next < 0 ? 0 : next > last_rank ? last_rank : next;
        if (next == best.rank) break;
        const std::uint64_t bits = cost_(code_at(next), stride);
        if (bits >= best.bits) break;
        best = {next, bits};
      }
      if (best.rank != start) break;  // the other side is uphill
    }
    return best;
  }

  THINWIRE_HD Candidate search() const {
    const std::uint64_t stride = count_ / sample | 1;  // odd: avoids resonance with patterns
    Candidate best{uniform_rank(), 0};
    best.bits = cost_(code_at(best.rank), stride);
    best = descend(best, 8, stride);
    best = descend(best, 2, stride);
    if (stride > 1) best.bits = cost_(code_at(best.rank), 1);
    return descend(best, 1, 1);
  }

  std::uint64_t count_;
  std::uint32_t extent_;
  const Cost& cost_;
};

}  // namespace thinwire
