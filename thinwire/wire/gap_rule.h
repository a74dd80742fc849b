// gap_rule.h: the adaptive gap coder for host and CUDA code: bit lengths and leading bits of gaps
// through an adaptive range coder, the other bits plain. One thread codes a chunk.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "thinwire/core/bit_count.h"
#include "thinwire/core/cuda.h"
#include "thinwire/core/status.h"
#include "thinwire/core/view.h"
#include "thinwire/wire/bits.h"

namespace thinwire::gap_rule {

inline constexpr unsigned longest = 32;       // bit length of the largest gap
inline constexpr unsigned modelled_bits = 2;  // mantissa bits that are modelled
inline constexpr std::uint64_t one = std::uint64_t{1} << 32;
inline constexpr std::uint32_t steady_count = 60;

// 2 / (2c + 3) in 16 bits: the step of the estimate after c observations.
THINWIRE_HD constexpr std::uint32_t rate_after(std::uint32_t c) {
#ifdef __CUDA_ARCH__
  return 131072 / (2 * c + 3);  // a device cannot index the host's table
#else
  constexpr auto rates = [] {
    std::array<std::uint32_t, steady_count + 1> table{};
    for (std::uint32_t i = 0; i <= steady_count; ++i) table[i] = 131072 / (2 * i + 3);
    return table;
  }();
  return rates[c];
#endif
}

// The estimated probability that a bit is set, in 1 / 65536.
struct Chance {
  std::uint32_t set = 32768;
  std::uint32_t seen = 0;

  // The probability for the range coder, which must never be 0 or 1.
  THINWIRE_HD std::uint32_t in_4096() const { return std::clamp<std::uint32_t>(set >> 4, 1, 4095); }

  THINWIRE_HD void learn(bool bit) {
    const std::uint32_t rate = rate_after(seen);
    if (bit) {
      set += ((65535 - set) * rate) >> 16;
    } else {
      set -= (set * rate) >> 16;
    }
    seen += seen < steady_count ? 1 : 0;
  }
};

THINWIRE_HD inline std::uint32_t clamp_chance(std::uint64_t chance) {
  return static_cast<std::uint32_t>(std::clamp<std::uint64_t>(chance, 32, 65503));
}

// The adaptive model of one chunk's gaps. It starts as the geometric distribution of `count` in
// `extent`.
class Model {
 public:
  THINWIRE_HD Model(std::uint64_t count, std::uint64_t extent) {
    std::array<std::uint64_t, longest + 1>
        power{};  // power[j] = q^(2^(j-1)), q = P(not a survivor)
    std::array<std::uint64_t, longest + 1> above{};  // above[j] = P(bit length > j)
    above[0] = one;
    power[1] = std::min(one - 1, ((extent - count) << 32) / extent);
    for (unsigned j = 1; j < longest; ++j) {
      above[j] = (above[j - 1] * power[j]) >> 32;
      power[j + 1] = (power[j] * power[j]) >> 32;
    }
    for (unsigned node = 1; node < longest; ++node) length[node] = length_chance(above, node);
    const auto needed = bit_width(extent);
    for (unsigned bits = 2; bits <= needed; ++bits) {
      mantissa[bits][1] = mantissa_chance(power[bits - 1]);
      mantissa[bits][2] = mantissa_chance(bits < 3 ? 0 : power[bits - 2]);
      mantissa[bits][3] = mantissa[bits][2];
    }
  }

  std::array<Chance, longest> length;  // a binary tree over bit lengths 1 .. 32, root at 1
  std::array<std::array<Chance, 4>, longest + 1> mantissa;  // per bit length, root at 1

 private:
  THINWIRE_HD static Chance length_chance(const std::array<std::uint64_t, longest + 1>& above,
                                          unsigned node) {
    const auto level = bit_width(node) - 1;
    // The analyzer takes the node for 0.
    // NOLINTNEXTLINE(clang-analyzer-core.UndefinedBinaryOperatorResult)
    const unsigned width = longest >> level, from = (node - (1u << level)) * width;
    const std::uint64_t all = above[from] - above[from + width];
    const std::uint64_t upper = above[from + width / 2] - above[from + width];
    return {all >= 4 ? clamp_chance((upper << 16) / all) : 32768, 8};
  }

  THINWIRE_HD static Chance mantissa_chance(std::uint64_t power) {
    return {clamp_chance((power << 16) / (one + power)), 32};
  }
};

inline constexpr std::uint32_t smallest_range = 1u << 24;

// The low end of [low, low + range) rounded up to its first `bytes` bytes.
THINWIRE_HD inline std::uint64_t round_up(std::uint32_t low, unsigned bytes) {
  const std::uint64_t rest = (one >> (8 * bytes)) - 1;
  return (low + rest) & ~rest;
}

// The number of bytes after which the value lies in [low, low + range), whatever bytes follow.
THINWIRE_HD inline unsigned closing_bytes(std::uint32_t low, std::uint32_t range) {
  unsigned bytes = 1;
  while (round_up(low, bytes) + ((one >> (8 * bytes)) - 1) > std::uint64_t{low} + range - 1)
    ++bytes;
  return bytes;
}

// A carry-propagating range encoder: bytes that a carry could still change are held back.
class RangeEncoder {
 public:
  THINWIRE_HD explicit RangeEncoder(Bytes out) : out_(out) {}

  THINWIRE_HD void code(bool bit, Chance& chance) {
    const std::uint32_t bound = (range_ >> 12) * chance.in_4096();
    if (bit) {
      range_ = bound;
    } else {
      low_ += bound;
      range_ -= bound;
    }
    chance.learn(bit);
    while (range_ < smallest_range) {
      range_ <<= 8;
      shift();
    }
  }

  THINWIRE_HD void finish() {
    const std::uint64_t carry = low_ & one;
    const unsigned bytes = closing_bytes(static_cast<std::uint32_t>(low_), range_);
    low_ = carry + round_up(static_cast<std::uint32_t>(low_), bytes);
    for (unsigned i = 0; i <= bytes; ++i) shift();
  }

  THINWIRE_HD std::size_t bytes() const { return size_; }
  THINWIRE_HD bool fits() const { return size_ <= out_.size(); }

 private:
  THINWIRE_HD void shift() {
    if (low_ < 0xff000000u || low_ >= one) {
      const auto carry = static_cast<std::uint32_t>(low_ >> 32);
      if (started_) emit(held_ + carry);
      for (; held_back_ > 0; --held_back_) emit(0xff + carry);
      held_ = static_cast<std::uint32_t>(low_ >> 24) & 0xff;
      started_ = true;
    } else {
      ++held_back_;
    }
    low_ = (low_ & 0xffffff) << 8;
  }

  THINWIRE_HD void emit(std::uint32_t byte) {
    if (size_ < out_.size()) out_[size_] = static_cast<std::byte>(byte & 0xff);
    ++size_;
  }

  Bytes out_;
  std::size_t size_ = 0;
  std::uint64_t low_ = 0;
  std::uint32_t range_ = 0xffffffffu;
  std::uint32_t held_ = 0;
  std::uint64_t held_back_ = 0;
  bool started_ = false;  // the byte before the first is always zero and not written
};

// Reads from the last byte towards the first; zeros before it.
class RangeDecoder {
 public:
  THINWIRE_HD explicit RangeDecoder(ConstBytes bytes) : bytes_(bytes) {
    code_ = window(0);
    read_ = 4;
  }

  THINWIRE_HD bool code(Chance& chance) {
    const std::uint32_t bound = (range_ >> 12) * chance.in_4096();
    const bool bit = code_ < bound;
    if (bit) {
      range_ = bound;
    } else {
      code_ -= bound;
      range_ -= bound;
    }
    chance.learn(bit);
    while (range_ < smallest_range) {
      range_ <<= 8;
      code_ = code_ << 8 | at(read_++);
    }
    return bit;
  }

  // Whether the value lies in the first interval; it then lies in every later one.
  THINWIRE_HD bool starts_inside() const { return code_ < range_; }

  // Whether our encoder would write exactly these `length` bytes for the decoded gaps. The
  // encoder's low end is the value read minus code_, so its last bytes are known here.
  THINWIRE_HD bool ends_at(std::size_t length) const {
    const std::uint32_t value = window(read_ - 4), low = value - code_;
    const unsigned bytes = closing_bytes(low, range_);
    const unsigned rest = 32 - 8 * bytes;
    const auto expected = static_cast<std::uint32_t>(round_up(low, bytes));
    return read_ - 4 + bytes == length && value >> rest == expected >> rest;
  }

 private:
  THINWIRE_HD std::uint32_t at(std::size_t i) const {
    return i < bytes_.size() ? std::to_integer<std::uint32_t>(bytes_[bytes_.size() - 1 - i]) : 0;
  }
  THINWIRE_HD std::uint32_t window(std::size_t i) const {
    return at(i) << 24 | at(i + 1) << 16 | at(i + 2) << 8 | at(i + 3);
  }

  ConstBytes bytes_;
  std::size_t read_ = 0;
  std::uint32_t code_ = 0;
  std::uint32_t range_ = 0xffffffffu;
};

// Mantissa bits below the modelled ones, of a gap with `bits` bits.
THINWIRE_HD constexpr unsigned plain_bits(unsigned bits) {
  return bits > modelled_bits + 1 ? bits - 1 - modelled_bits : 0;
}

THINWIRE_HD inline void code_gap(RangeEncoder& coder, Model& model, std::uint32_t gap) {
  const auto bits = bit_width(gap);
  unsigned node = 1;
  for (unsigned bit = 5; bit-- > 0;) {
    const bool set = ((bits - 1) >> bit) & 1;
    coder.code(set, model.length[node]);
    node = 2 * node + (set ? 1 : 0);
  }
  node = 1;
  for (unsigned bit = bits - 1; bit-- > plain_bits(bits);) {
    const bool set = (gap >> bit) & 1;
    coder.code(set, model.mantissa[bits][node]);
    node = 2 * node + (set ? 1 : 0);
  }
}

THINWIRE_HD inline std::uint64_t decode_gap(RangeDecoder& coder, Model& model, BitReader& plain) {
  unsigned node = 1;
  while (node < longest) node = 2 * node + (coder.code(model.length[node]) ? 1 : 0);
  const unsigned bits = node - longest + 1;
  std::uint64_t gap = 1;  // its leading bits, the first of which is the one; also the tree's node
  while (gap < (1u << modelled_bits) && bit_width(gap) < bits)
    gap = 2 * gap + (coder.code(model.mantissa[bits][gap]) ? 1 : 0);
  const unsigned rest = plain_bits(bits);
  gap = gap << rest | (plain.peek() & ((std::uint64_t{1} << rest) - 1));
  plain.skip(rest);
  return gap;
}

// Codes indices of a chunk that starts at element `first` into `out` and returns the bytes used; 0
// when they do not fit.
THINWIRE_HD inline std::size_t encode(std::span<const std::uint32_t> indices, std::uint32_t first,
                                      std::uint32_t extent, Bytes out) {
  BitWriter plain(out);
  std::uint32_t before = first - 1;
  for (const std::uint32_t index : indices) {
    const std::uint32_t gap = index - before;
    const unsigned rest = plain_bits(bit_width(gap));
    plain.put(gap & ((1u << rest) - 1), rest);
    before = index;
  }
  if (!plain.fits()) return 0;
  const Bytes behind = out.subspan(plain.bytes());
  Model model(indices.size(), extent);
  RangeEncoder coder(behind);
  before = first - 1;
  for (const std::uint32_t index : indices) {
    code_gap(coder, model, index - before);
    before = index;
  }
  coder.finish();
  if (!coder.fits()) return 0;
  std::reverse(behind.begin(), behind.begin() + static_cast<std::ptrdiff_t>(coder.bytes()));
  return plain.bytes() + coder.bytes();
}

// Decodes indices relative to the chunk.
THINWIRE_HD inline Status decode(std::uint8_t parameter, ConstBytes bytes, std::uint32_t extent,
                                 std::span<std::uint32_t> out) {
  if (parameter != 0) return {Code::bad_value, "gap: parameter is not zero"};
  Model model(out.size(), extent);
  RangeDecoder coder(bytes);
  if (!coder.starts_inside()) return {Code::bad_value, "gap: not the bytes of any indices"};
  BitReader plain(bytes);
  std::uint64_t next = 0;
  for (std::uint32_t& index : out) {
    const std::uint64_t value = next + decode_gap(coder, model, plain) - 1;
    if (value >= extent) return {Code::bad_value, "gap: an index is outside its chunk"};
    index = static_cast<std::uint32_t>(value);
    next = value + 1;
  }
  if (plain.overrun()) return {Code::truncated, "gap: bytes end inside the indices"};
  if (!plain.padding_is_zero()) return {Code::bad_value, "gap: padding is not zero"};
  if (!coder.ends_at(bytes.size() - plain.bytes_used()))
    return {Code::bad_value, "gap: not the bytes that these indices give"};
  return {};
}

}  // namespace thinwire::gap_rule
