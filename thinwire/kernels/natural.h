// natural.h: natural compression (Horvath et al. 2019): rounds a number to one of its two
// neighbouring powers of two at random, with the exact mean. On the bits of a float: add 23 random
// bits to the mantissa, and keep the exponent after the carry.
//
// The wire format is a byte per element with its exponent field (0: zero; 1 to 254: 2^(field -
// 127)), then a bit per element with its sign. Zero stays zero. A denormal m 2^-149 becomes 2^-126
// with probability m / 2^23, else zero. A number above 2^127 becomes 2^127, because the next power
// overflows f32. Only there the mean is not exact.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "thinwire/core/cuda.h"
#include "thinwire/kernels/draw.h"

namespace thinwire {

// Codes x = g + v (x = g where v is null) as `count` exponents and (count + 7) / 8 bytes of signs,
// and sets v = x - value. `first` is the number of the first element, for its random draw; it is a
// multiple of 32. Returns false when an x is not finite, or (with v) a g is beyond the limit
// (limit.h): such an element is coded as zero and keeps its v. 13.1 bytes of memory traffic per
// element with v, 5.1 without.
bool natural_encode(const float* g, float* v, std::size_t count, DrawKey key, std::uint32_t first,
                    std::uint8_t* exponents, std::uint8_t* signs);
// target += share * value. Returns false when an exponent is 255 or a padding bit is set.
bool natural_add(const std::uint8_t* exponents, const std::uint8_t* signs, std::size_t count,
                 float share, float* target);

// The plain references. Same bits.
bool natural_encode_reference(const float* g, float* v, std::size_t count, DrawKey key,
                              std::uint32_t first, std::uint8_t* exponents, std::uint8_t* signs);
bool natural_add_reference(const std::uint8_t* exponents, const std::uint8_t* signs,
                           std::size_t count, float share, float* target);

// The rules: the exponent field that a finite x is rounded to, and the value of a field.
THINWIRE_HD constexpr std::uint8_t natural_exponent(std::uint32_t bits, std::uint32_t draw) {
  const std::uint32_t field = ((bits & 0x7fffffffu) + (draw >> 9)) >> 23;
  return static_cast<std::uint8_t>(field < 254u ? field : 254u);
}
THINWIRE_HD constexpr float natural_power(std::uint32_t exponent, bool negative) {
  return std::bit_cast<float>(exponent << 23 | (negative ? 1u << 31 : 0u));
}

}  // namespace thinwire
