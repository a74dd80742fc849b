// terngrad.h: the kernels of TernGrad (Wen et al. 2017): the statistics of a layer, random signs,
// and their sums over the ranks. A byte holds five ternary values (3^5 = 243).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "thinwire/core/cuda.h"
#include "thinwire/kernels/draw.h"

namespace thinwire {

struct LayerStatistics {
  double squares = 0;  // sum of x*x, in the order of squared_norm()
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
THINWIRE_HD constexpr float terngrad_inverse(float scale) {
  return scale < 0x1p-100f ? 0 : 0x1p22f / scale;
}

// One element as -1, 0 or 1. It is sent when the sum of its probability and a draw of as many bits
// carries. The largest x is always sent, because the roundings of its probability are below half a
// unit.
THINWIRE_HD inline int terngrad_value(float x, float clip, float inverse, std::uint32_t draw) {
  const float magnitude = std::fabs(x);
  const float chance = (clip < magnitude ? clip : magnitude) * inverse + terngrad_rounder;
  const std::uint32_t sum = std::bit_cast<std::uint32_t>(chance) + (draw >> (32 - terngrad_places));
  if ((sum >> terngrad_places & 1) == 0) return 0;
  return std::bit_cast<std::uint32_t>(x) >> 31 != 0 ? -1 : 1;
}

// What a layer sends in the first round: its largest magnitude after clipping to `clip` standard
// deviations (0: no clipping), or infinity when it is not finite, which wins every maximum.
struct TerngradBounds {
  float clip, scale;
};
THINWIRE_HD inline TerngradBounds terngrad_bounds(double clip, const LayerStatistics& found,
                                                  std::size_t count) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  const double sigma = std::sqrt(found.squares / static_cast<double>(count == 0 ? 1 : count));
  const float bound = clip > 0 ? static_cast<float>(clip * sigma) : infinity;
  return {bound, !found.finite ? infinity : bound < found.largest ? bound : found.largest};
}

}  // namespace thinwire
