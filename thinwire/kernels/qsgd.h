// qsgd.h: the quantiser of QSGD (Alistarh et al. 2017). It rounds an element to one of s = 2^bits -
// 1 levels of its bucket's norm at random, with the exact mean:
//
//     l = s |x_i| / norm,  level = floor(l), or one more with probability l - floor(l)
//     value = sign(x_i) level norm / s
//
// l is rounded to the nearest multiple of 2^-16 (2^-15 with 8 bits), and the draw has as many bits,
// so the mean is exact to half of that, in levels. |x_i| <= norm holds after all roundings, so no
// level exceeds the top level; x_i = norm reaches it.
//
// The L2 norm is summed in float: element i of the bucket goes to sum i % 32, and the sums are
// added as a tree. Where this leaves the range in which squares are safe, the norm of norm.h is
// used.
//
// A packed bucket on the wire is the norm as f32, a sign bit per element, and `bits` bits of level
// per element, each plane padded to a byte. A bucket whose norm is below 2^-100 has norm 0 and is
// zero.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "thinwire/core/cuda.h"
#include "thinwire/kernels/draw.h"
#include "thinwire/kernels/levels.h"

namespace thinwire {

struct QsgdRule {
  std::size_t bucket = 512;  // elements; a multiple of 64, at most qsgd_most
  unsigned bits = 7;         // 1 to 8
  bool largest = false;      // norm: the largest |x| of the bucket, else the L2 norm
};

inline constexpr std::size_t qsgd_most = 8192;

constexpr std::size_t qsgd_bucket_bytes(const QsgdRule& rule, std::size_t count) {
  return 4 + level_bytes(count, 1) + level_bytes(count, rule.bits);
}
constexpr std::size_t qsgd_bytes(const QsgdRule& rule, std::size_t count) {
  const std::size_t rest = count % rule.bucket;
  return count / rule.bucket * qsgd_bucket_bytes(rule, rule.bucket) +
         (rest == 0 ? 0 : qsgd_bucket_bytes(rule, rest));
}

// Codes x = g + v (x = g where v is null) into qsgd_bytes(rule, count) packed bytes, and sets
// v = x - value. `first` is the number of the first element, for its random draw; it is a multiple
// of the bucket. Returns false when a bucket has an x that is not finite, a norm that overflows
// f32, or (with v) a g beyond the limit (limit.h). Such a bucket is coded as zeros, and v adds the
// elements of g that are within the limit. One pass over memory: 4 bytes per element (12 with v)
// plus the output.
bool qsgd_encode(const QsgdRule& rule, const float* g, float* v, std::size_t count, DrawKey key,
                 std::uint32_t first, std::uint8_t* out);
// target += share * value. Returns false when a bucket has bytes that no encoder writes.
bool qsgd_add(const QsgdRule& rule, const std::uint8_t* in, std::size_t count, float share,
              float* target);

// One bucket, for other forms than the packed one: norm, levels (with room for a whole bucket) and
// signs.
bool qsgd_quantise(const QsgdRule& rule, const float* g, float* v, std::size_t count, DrawKey key,
                   std::uint32_t first, float& norm, std::uint8_t* levels, std::uint8_t* signs);
void qsgd_apply(const QsgdRule& rule, float norm, const std::uint8_t* levels,
                const std::uint8_t* signs, std::size_t count, float share, float* target);
// Whether an encoder could have written this packed bucket of `count` elements: the norm is sound,
// a norm of 0 is followed by zeros only, and padding bits are zero.
bool qsgd_bucket_is_sound(const QsgdRule& rule, const std::uint8_t* in, std::size_t count);

// The plain references. Same bits.
bool qsgd_encode_reference(const QsgdRule& rule, const float* g, float* v, std::size_t count,
                           DrawKey key, std::uint32_t first, std::uint8_t* out);
bool qsgd_add_reference(const QsgdRule& rule, const std::uint8_t* in, std::size_t count,
                        float share, float* target);

bool qsgd_quantise_reference(const QsgdRule& rule, const float* g, float* v, std::size_t count,
                             DrawKey key, std::uint32_t first, float& norm, std::uint8_t* levels,
                             std::uint8_t* signs);
void qsgd_apply_reference(const QsgdRule& rule, float norm, const std::uint8_t* levels,
                          const std::uint8_t* signs, std::size_t count, float share, float* target);

// The rules, the same for the reference, all vector widths and CUDA.
struct QsgdScale {
  float norm = 0;
  float unit = 0;     // the value of level 1
  float inverse = 0;  // s / norm in units of the last place of l; 0 in a zero bucket
  bool finite = true;
};
inline constexpr float qsgd_smallest_norm = 0x1p-100f;
// level * unit is rounded, so near the largest float it would overflow.
inline constexpr float qsgd_largest_norm = 0x1p127f;
THINWIRE_HD constexpr unsigned qsgd_places(const QsgdRule& rule) { return rule.bits < 8 ? 16 : 15; }
// Adding this to a float below 2^23 leaves the nearest integer in its low bits.
inline constexpr float qsgd_rounder = 0x1p23f;
// Whether the L2 norm can be computed from this sum of squares.
THINWIRE_HD constexpr bool qsgd_sum_is_sound(float sum) {
  return sum >= 0x1p-60f && sum <= 0x1p100f;
}

THINWIRE_HD inline QsgdScale qsgd_scale(const QsgdRule& rule, double norm) {
  const auto rounded = static_cast<float>(norm);
  const auto top = static_cast<float>((1u << rule.bits) - 1);
  if (!(rounded <= qsgd_largest_norm)) return {0, 0, 0, false};
  if (rounded < qsgd_smallest_norm) return {};
  const auto place = static_cast<float>(1u << qsgd_places(rule));
  return {rounded, rounded / top, top * place / rounded, true};
}

THINWIRE_HD inline std::uint8_t qsgd_level(const QsgdRule& rule, float magnitude, float inverse,
                                           std::uint32_t draw) {
  const unsigned places = qsgd_places(rule);
  const auto bits = std::bit_cast<std::uint32_t>(magnitude * inverse + qsgd_rounder);
  return static_cast<std::uint8_t>((bits + (draw >> (32 - places))) >> places);
}

// Whether an encoder could have written this norm.
THINWIRE_HD inline bool qsgd_norm_is_sound(float norm) {
  return std::bit_cast<std::uint32_t>(norm) >> 31 == 0 &&
         (norm == 0 || (norm >= qsgd_smallest_norm && norm <= qsgd_largest_norm));
}

}  // namespace thinwire
