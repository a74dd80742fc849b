// int8.h: blocks of numbers as bytes between their minimum and their maximum.
//
//     lo = min x,  step = (max x - lo) / 255,  code = round((x - lo) / step),  value = lo + code step
//
// Rounding is to the nearest, of two equally near to the even code; or at random with the exact mean
// of (x - lo) / step to the nearest multiple of 2^-15.
//
// A block on the wire: lo and step as f32, then a byte per element. A block whose step is below
// 2^-100 has step 0: its values are all lo. One pass over memory: a block is read, and stays in the
// first cache until it is done with.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "thinwire/kernels/draw.h"

namespace thinwire {

struct Int8Rule {
  std::size_t block = 256;  // elements; a multiple of 64, at most int8_most
  bool random = false;      // round at random, so that the mean is exact; else to nearest
};

inline constexpr std::size_t int8_most = 8192;
inline constexpr std::size_t int8_block_header = 8;

constexpr std::size_t int8_bytes(const Int8Rule& rule, std::size_t count) {
  return (count + rule.block - 1) / rule.block * int8_block_header + count;
}

// Codes x = g + v (v null: x = g) into int8_bytes(rule, count) bytes, and leaves x - value in v.
// `first` is the first element's number for its draw, a multiple of the block. False where a block
// has an x that is not finite or a range that no float holds, or with v a g beyond the limit
// (limit.h): that block is coded as zeros, and v takes in what of g is within it. 13 bytes of memory traffic per element with v, 5 without.
bool int8_encode(const Int8Rule& rule, const float* g, float* v, std::size_t count, DrawKey key,
                 std::uint32_t first, std::uint8_t* out);
// target += share * value. False where a block's numbers are none that an encoder writes.
bool int8_add(const Int8Rule& rule, const std::uint8_t* in, std::size_t count, float share,
              float* target);

// The same, one element after the other. Same bits.
bool int8_encode_reference(const Int8Rule& rule, const float* g, float* v, std::size_t count,
                           DrawKey key, std::uint32_t first, std::uint8_t* out);
bool int8_add_reference(const Int8Rule& rule, const std::uint8_t* in, std::size_t count,
                        float share, float* target);

// The numbers of a block, shared so that all agree on them.
struct Int8Scale {
  float lo = 0, step = 0;
  float inverse = 0;  // 1 / step, 0 where that is 0
  bool finite = true;
};
// Added to a float below 2^23 it leaves the nearest integer in the low bits.
inline constexpr float int8_rounder = 0x1p23f;
Int8Scale int8_scale(float smallest, float largest, bool finite);
void int8_store_scale(const Int8Scale& scale, std::uint8_t* out);
// `finite` says whether an encoder could have written it; lo and step come multiplied by `share`.
Int8Scale int8_load_scale(const std::uint8_t* in, float share);

}  // namespace thinwire
