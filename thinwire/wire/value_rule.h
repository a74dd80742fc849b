// value_rule.h: the codes of one value, for host and CUDA code. Uses only integers and single exact
// operations, so that both give the same bits.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "thinwire/core/bit_count.h"
#include "thinwire/core/cuda.h"
#include "thinwire/core/half.h"
#include "thinwire/wire/divide.h"
#include "thinwire/wire/values.h"

namespace thinwire::value_rule {

inline constexpr std::uint32_t sign_bit = 0x80000000u, infinity = 0x7f800000u;
inline constexpr std::uint16_t largest_bf16 = 0x7f7f, largest_f16 = 0x7bff;
inline constexpr std::size_t log_header = 4, sign_header = 2;

THINWIRE_HD inline std::uint32_t bits_of(float value) {
  return std::bit_cast<std::uint32_t>(value);
}
THINWIRE_HD inline std::uint32_t magnitude_of(float value) { return bits_of(value) & ~sign_bit; }
THINWIRE_HD inline float float_of(std::uint32_t bits) { return std::bit_cast<float>(bits); }

// f16 and bf16: a pair of conversions and the largest finite pattern

struct F16 {
  static constexpr std::uint16_t largest = largest_f16;
  THINWIRE_HD static std::uint16_t from(float value) { return to_f16(value); }
  THINWIRE_HD static float to(std::uint16_t bits) { return from_f16(bits); }
};

struct Bf16 {
  static constexpr std::uint16_t largest = largest_bf16;
  THINWIRE_HD static std::uint16_t from(float value) { return to_bf16(value); }
  THINWIRE_HD static float to(std::uint16_t bits) { return from_bf16(bits); }
};

template <typename Half>
THINWIRE_HD std::uint32_t half_code(float value) {
  const std::uint32_t half = Half::from(value);
  const std::uint32_t sign = half & 0x8000u;
  return sign | std::min<std::uint32_t>(half ^ sign, Half::largest);
}

// log8 and log4: levels between the chunk's smallest and largest magnitude, kept to 16 bits each.
class LogScale {
 public:
  THINWIRE_HD LogScale(std::uint32_t lo, std::uint32_t hi, unsigned level_bits)
      : bottom_(lo << 16), width_(hi - lo + 1), level_bits_(level_bits), divide_(width_) {}

  THINWIRE_HD std::uint32_t level(std::uint32_t magnitude) const {
    const std::uint64_t scaled = std::uint64_t{magnitude - bottom_} << level_bits_;
    return divide_.quotient(static_cast<std::uint32_t>(scaled >> 16));
  }
  THINWIRE_HD std::uint32_t magnitude(std::uint32_t level) const {
    return bottom_ + (((2 * level + 1) * width_) << (15 - level_bits_));
  }

  // Sign and level, and the value that they decode to. Bits above them are ignored.
  THINWIRE_HD std::uint32_t code(float value) const {
    return ((bits_of(value) & sign_bit) >> (31 - level_bits_)) | level(magnitude_of(value));
  }
  THINWIRE_HD float value(std::uint32_t code) const {
    const std::uint32_t levels = 1u << level_bits_;
    return float_of((code & levels) << (31 - level_bits_) | magnitude(code & (levels - 1)));
  }

 private:
  std::uint32_t bottom_, width_;
  unsigned level_bits_;
  Divider divide_;
};

// Exponent field of a bit pattern; subnormals share the smallest normal's scale.
THINWIRE_HD inline std::uint32_t exponent_of(std::uint32_t magnitude) {
  return std::max(magnitude >> 23, 1u);
}

THINWIRE_HD inline std::uint32_t significand_of(std::uint32_t magnitude) {
  return (magnitude & 0x7fffffu) | (magnitude >> 23 == 0 ? 0u : 0x800000u);
}

// What a magnitude adds to the sum, in units of 2^(top - 157), rounded down; `top` is the largest
// exponent field, so that every term is below 2^31.
THINWIRE_HD inline std::uint32_t sign_term(std::uint32_t magnitude, std::uint32_t top) {
  return (significand_of(magnitude) << 7) >> std::min(top - exponent_of(magnitude), 31u);
}

// The bf16 nearest to mean * 2^(top - 157), ties to even; at least the smallest, at most the
// largest finite.
THINWIRE_HD inline std::uint32_t round_to_bf16(std::uint32_t mean, std::uint32_t top) {
  const int length = static_cast<int>(bit_width(mean));
  const int exponent = std::max(static_cast<int>(top) + length - 31, 1);  // field of the result
  const int drop = exponent - static_cast<int>(top) + 23;  // bits below the result's last
  std::uint32_t rounded = 0;
  if (drop <= 0) {
    rounded = mean << -drop;
  } else {
    const std::uint32_t half = (1u << (drop - 1)) - 1 + ((mean >> drop) & 1u);
    rounded = (mean + half) >> drop;
  }
  const std::uint32_t bits = (static_cast<std::uint32_t>(exponent - 1) << 7) + rounded;
  return std::clamp<std::uint32_t>(bits, 1, largest_bf16);
}

// The header of a chunk of signs, from the sum of its terms.
THINWIRE_HD inline std::uint32_t sign_mean(std::uint64_t sum, std::uint64_t count,
                                           std::uint32_t top) {
  return round_to_bf16(static_cast<std::uint32_t>(std::max<std::uint64_t>(sum / count, 1)), top);
}

// Bytes of a chunk's value header.
THINWIRE_HD constexpr std::size_t header_bytes(ValueCoder coder) {
  switch (coder) {
    case ValueCoder::log8:
    case ValueCoder::log4:
      return log_header;
    case ValueCoder::sign:
      return sign_header;
    case ValueCoder::f32:
    case ValueCoder::f16:
    case ValueCoder::bf16:
      break;
  }
  return 0;
}

// Bits of one code: 32, 16, 16, 8, 4, 1.
THINWIRE_HD constexpr std::size_t code_bits(ValueCoder coder) {
  switch (coder) {
    case ValueCoder::f32:
      return 32;
    case ValueCoder::f16:
    case ValueCoder::bf16:
      return 16;
    case ValueCoder::log8:
      return 8;
    case ValueCoder::log4:
      return 4;
    case ValueCoder::sign:
      break;
  }
  return 1;
}

// Bytes that `count` > 0 values take, the header included.
THINWIRE_HD constexpr std::uint64_t bytes(ValueCoder coder, std::uint64_t count) {
  return header_bytes(coder) + (count * code_bits(coder) + 7) / 8;
}

}  // namespace thinwire::value_rule
