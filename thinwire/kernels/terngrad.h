// terngrad.h: the kernels of TernGrad (Wen et al. 2017): the statistics of a layer, random signs,
// and their sums over the ranks. A byte holds five ternary values (3^5 = 243).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "thinwire/kernels/draw.h"

namespace thinwire {

struct LayerStatistics {
  double squares = 0;  // sum of x*x, in the order of sum_of_squares()
  float largest = 0;   // largest magnitude
  bool finite = true;  // false: the other fields have no meaning
};

// 4 bytes of memory traffic per element.
LayerStatistics layer_statistics(const float* x, std::size_t count);

// out = sign(x) with probability min(|x|, clip) / scale, rounded to the nearest multiple of 2^-22,
// else 0. Every |x| up to `clip` is at most `scale`; a scale below 2^-100 gives zeros. `first` is
// the number of the first element, for its random draw. 4 bytes of memory traffic per element, plus
// the output.
void terngrad_quantise(const float* x, std::size_t count, float scale, float clip, DrawKey key,
                       std::uint32_t first, std::int8_t* out);

// Packs values of {-1, 0, 1} into (count + 4) / 5 bytes, five per byte. 320 elements make 64 bytes:
// byte j holds the elements j, j + 64, ..., j + 256 as digits of weight 1, 3, 9, 27, 81, where -1
// is the digit 2. The last group may have fewer elements; it makes (count + 4) / 5 bytes in the
// same way, with zeros for missing elements. `count` is that of a whole payload, or a multiple of
// 320.
inline constexpr std::size_t terngrad_group = 320;
void terngrad_pack(const std::int8_t* values, std::size_t count, std::uint8_t* out);

// Quantises and packs in one pass. `count` and `first` are multiples of 320.
void terngrad_encode(const float* x, std::size_t count, float scale, float clip, DrawKey key,
                     std::uint32_t first, std::uint8_t* out);

// sums += the values of the bytes. Returns false when a byte is not one that an encoder writes.
bool terngrad_add(const std::uint8_t* in, std::size_t count, std::int16_t* sums);

// out = sums * unit.
void terngrad_scale(const std::int16_t* sums, std::size_t count, float unit, float* out);
void terngrad_scale(const std::int8_t* sums, std::size_t count, float unit, float* out);

// The plain references. Same bits.
LayerStatistics layer_statistics_reference(const float* x, std::size_t count);
void terngrad_quantise_reference(const float* x, std::size_t count, float scale, float clip,
                                 DrawKey key, std::uint32_t first, std::int8_t* out);
void terngrad_pack_reference(const std::int8_t* values, std::size_t count, std::uint8_t* out);
void terngrad_encode_reference(const float* x, std::size_t count, float scale, float clip,
                               DrawKey key, std::uint32_t first, std::uint8_t* out);
bool terngrad_add_reference(const std::uint8_t* in, std::size_t count, std::int16_t* sums);

// Bits of the probability to be sent. All vector widths share these numbers, so that they round
// alike.
inline constexpr unsigned terngrad_places = 22;
// Adding this to a float below 2^23 leaves the nearest integer in its low bits.
inline constexpr float terngrad_rounder = 0x1p23f;
// The factor from a magnitude to its probability, in units of 2^-22.
constexpr float terngrad_inverse(float scale) { return scale < 0x1p-100f ? 0 : 0x1p22f / scale; }

}  // namespace thinwire
