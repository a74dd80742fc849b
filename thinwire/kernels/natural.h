// natural.h: natural compression (Horvath et al. 2019): a number is rounded to one of the two powers
// of two around it, at random, such that the mean is exact. On the bits of a float: add 23 random
// bits to the mantissa, keep what carries into the exponent.
//
// On the wire: a byte per element, its exponent field (0: zero; 1 to 254: 2^(field - 127)), then a
// bit per element, its sign. Zero stays zero. A denormal m 2^-149 becomes 2^-126 with probability
// m / 2^23, else zero. Above 2^127, where the next power is no float, everything becomes 2^127: the
// one place where the mean is not exact.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "thinwire/kernels/draw.h"

namespace thinwire {

// Codes x = g + v (v null: x = g): `count` exponents and (count + 7) / 8 bytes of signs; leaves
// x - value in v. `first` is the first element's number for its draw, a multiple of 32. False where
// an x is not finite, or with v a g is beyond the limit (limit.h): it is coded as zero and keeps its
// v. 13.1 bytes of memory traffic per element
// with v, 5.1 without.
bool natural_encode(const float* g, float* v, std::size_t count, DrawKey key, std::uint32_t first,
                    std::uint8_t* exponents, std::uint8_t* signs);
// target += share * value. False where an exponent is 255, or a bit behind the last sign is set.
bool natural_add(const std::uint8_t* exponents, const std::uint8_t* signs, std::size_t count,
                 float share, float* target);

// The same, one element after the other. Same bits.
bool natural_encode_reference(const float* g, float* v, std::size_t count, DrawKey key,
                              std::uint32_t first, std::uint8_t* exponents, std::uint8_t* signs);
bool natural_add_reference(const std::uint8_t* exponents, const std::uint8_t* signs,
                           std::size_t count, float share, float* target);

}  // namespace thinwire
