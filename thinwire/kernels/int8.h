// int8.h: blocks of numbers as bytes between the minimum and the maximum of the block.
//
//     lo = min x,  step = (max x - lo) / 255
//     code = round((x - lo) / step),  value = lo + code step
//
// Rounding is to nearest, ties to the even code; or stochastic, where the mean is exact after
// rounding (x - lo) / step to the nearest multiple of 2^-15.
//
// A block on the wire is lo and step as f32, then a byte per element. A block whose step is below
// 2^-100 has step 0, and all its values are lo. The kernel passes over memory once: a block stays
// in the L1 cache until it is finished.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "thinwire/core/cuda.h"
#include "thinwire/core/element.h"
#include "thinwire/kernels/draw.h"

namespace thinwire {

struct Int8Rule {
  std::size_t block = 256;  // elements; a multiple of 64, at most int8_most
  bool random = false;      // stochastic rounding, with the exact mean; else to nearest
};

inline constexpr std::size_t int8_most = 8192;
inline constexpr std::size_t int8_block_header = 8;

constexpr std::size_t int8_bytes(const Int8Rule& rule, std::size_t count) {
  return (count + rule.block - 1) / rule.block * int8_block_header + count;
}

// Codes x = g + v (x = g where v is null) into int8_bytes(rule, count) bytes, and sets v = x -
// value. `first` is the number of the first element, for its random draw; it is a multiple of the
// block. Returns false when a block has an x that is not finite, a range that overflows f32, or
// (with v) a g beyond the limit (limit.h). Such a block is coded as zeros, and v adds the elements
// of g that are within the limit. 13 bytes of memory traffic per element with v, 5 without.
bool int8_encode(const Int8Rule& rule, const float* g, float* v, std::size_t count, DrawKey key,
                 std::uint32_t first, std::uint8_t* out);
// target += share * value. Returns false when a block has numbers that no encoder writes.
bool int8_add(const Int8Rule& rule, const std::uint8_t* in, std::size_t count, float share,
              float* target);

// The plain references. Same bits.
bool int8_encode_reference(const Int8Rule& rule, const float* g, float* v, std::size_t count,
                           DrawKey key, std::uint32_t first, std::uint8_t* out);
bool int8_add_reference(const Int8Rule& rule, const std::uint8_t* in, std::size_t count,
                        float share, float* target);

// The rules, the same for the reference, all vector widths and CUDA.
struct Int8Scale {
  float lo = 0, step = 0;
  float inverse = 0;  // 1 / step, 0 where that is 0
  bool finite = true;
};
inline constexpr float int8_smallest_step = 0x1p-100f;
// Adding this to a float below 2^23 leaves the nearest integer in its low bits.
inline constexpr float int8_rounder = 0x1p23f;

THINWIRE_HD inline Int8Scale int8_scale(float smallest, float largest, bool finite) {
  Int8Scale scale;
  scale.lo = smallest + 0.0f;  // turns -0 into +0, so that the order of elements does not matter
  scale.step = (largest - smallest) / 255;
  if (!finite || !is_finite(scale.lo + 255 * scale.step)) return {0, 0, 0, false};
  if (scale.step < int8_smallest_step) scale.step = 0;
  scale.inverse = scale.step > 0 ? 1 / scale.step : 0;
  return scale;
}

// The sum with int8_rounder has the nearest integer in its low bits.
THINWIRE_HD inline std::uint8_t int8_code(bool random, const Int8Scale& scale, float x,
                                          std::uint32_t draw) {
  const float place = (x - scale.lo) * scale.inverse;
  if (!random) return static_cast<std::uint8_t>(std::bit_cast<std::uint32_t>(place + int8_rounder));
  const float fine = (place < 255.0f ? place : 255.0f) * 0x1p15f;
  const auto bits = std::bit_cast<std::uint32_t>(fine + int8_rounder);
  return static_cast<std::uint8_t>((bits + (draw >> 17)) >> 15);
}

// Whether an encoder could have written these numbers of a block.
THINWIRE_HD inline bool int8_is_sound(float lo, float step) {
  const bool one_zero = std::bit_cast<std::uint32_t>(step) >> 31 == 0 &&
                        std::bit_cast<std::uint32_t>(lo) != 0x80000000u;
  return one_zero && (step == 0 || step >= int8_smallest_step) && is_finite(lo) &&
         is_finite(lo + 255 * step);
}

void int8_store_scale(const Int8Scale& scale, std::uint8_t* out);
// `finite` tells whether an encoder could have written it. lo and step are multiplied by `share`.
Int8Scale int8_load_scale(const std::uint8_t* in, float share);

}  // namespace thinwire
