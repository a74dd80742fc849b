// terngrad.h: TernGrad's kernels (Wen et al. 2017): the statistics of a layer, random signs, and
// their sums over the ranks. Five values of three make a byte (3^5 = 243).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "thinwire/kernels/draw.h"

namespace thinwire {

struct LayerStatistics {
  double squares = 0;  // sum of x*x, in the order of norm.h
  float largest = 0;   // of the magnitudes
  bool finite = true;  // else the others say nothing
};

// 4 bytes of memory traffic per element.
LayerStatistics layer_statistics(const float* x, std::size_t count);

// out = sign(x) with probability min(|x|, clip) / scale, taken to the nearest multiple of 2^-22, else
// 0. Every |x| up to `clip` is at most `scale`; a scale below 2^-100 gives zeros. `first` is the first
// element's number for its draw. 4 bytes of memory traffic per element, and what is written.
void terngrad_quantise(const float* x, std::size_t count, float scale, float clip, DrawKey key,
                       std::uint32_t first, std::int8_t* out);

// Values of {-1, 0, 1} by fives into (count + 4) / 5 bytes. 320 elements make 64 bytes; byte j of
// them holds the elements j, j + 64, ..., j + 256 as digits 1, 3, 9, 27, 81, where -1 is the digit 2.
// Fewer elements at the end make a group of (count + 4) / 5 bytes in the same way, with zeros for
// what is missing. `count` is that of a whole payload, or a multiple of 320.
inline constexpr std::size_t terngrad_group = 320;
void terngrad_pack(const std::int8_t* values, std::size_t count, std::uint8_t* out);

// Both at once, without the values in between: `count` and `first` are multiples of 320.
void terngrad_encode(const float* x, std::size_t count, float scale, float clip, DrawKey key,
                     std::uint32_t first, std::uint8_t* out);

// sums += the values of the bytes. False where a byte is none that an encoder writes.
bool terngrad_add(const std::uint8_t* in, std::size_t count, std::int16_t* sums);

// out = sums * unit.
void terngrad_scale(const std::int16_t* sums, std::size_t count, float unit, float* out);
void terngrad_scale(const std::int8_t* sums, std::size_t count, float unit, float* out);

// The same, one element after the other. Same bits.
LayerStatistics layer_statistics_reference(const float* x, std::size_t count);
void terngrad_quantise_reference(const float* x, std::size_t count, float scale, float clip,
                                 DrawKey key, std::uint32_t first, std::int8_t* out);
void terngrad_pack_reference(const std::int8_t* values, std::size_t count, std::uint8_t* out);
void terngrad_encode_reference(const float* x, std::size_t count, float scale, float clip,
                               DrawKey key, std::uint32_t first, std::uint8_t* out);
bool terngrad_add_reference(const std::uint8_t* in, std::size_t count, std::int16_t* sums);

// What the chance of being sent is counted in: shared, so that all round alike.
inline constexpr unsigned terngrad_places = 22;
// Added to a float below 2^23 it leaves the nearest integer in the low bits.
inline constexpr float terngrad_rounder = 0x1p23f;
// Makes a magnitude a chance, as a number of those places.
constexpr float terngrad_inverse(float scale) { return scale < 0x1p-100f ? 0 : 0x1p22f / scale; }

}  // namespace thinwire
