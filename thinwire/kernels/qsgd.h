// qsgd.h: QSGD's quantiser (Alistarh et al. 2017). In a bucket with norm |x| an element becomes one
// of s = 2^bits - 1 levels, rounded at random such that the mean is exact:
//
//     l = s |x_i| / norm,  level = floor(l), or one more with probability l - floor(l)
//     value = sign(x_i) level norm / s
//
// l is taken to the nearest multiple of 2^-16 (with 8 bits: 2^-15), and the draw has as many bits:
// the mean is right to half of that, in levels. |x_i| <= norm holds after all roundings, so the top
// level is never passed, and reached by x_i = norm.
//
// The L2 norm is a sum in float: element i of the bucket belongs to sum i % 32, and the sums are
// added as a tree. Where that leaves the range in which squares are sound, it is the one of norm.h.
//
// A bucket on the wire, packed: the norm as f32, a bit of sign per element, `bits` bits of level per
// element, each plane padded to a byte. A bucket whose norm is below 2^-100 has norm 0 and is zero.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

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

// Codes x = g + v (v null: x = g) into qsgd_bytes(rule, count) bytes, packed, and leaves x - value
// in v. `first` is the first element's number for its draw, a multiple of the bucket. False where a
// bucket has an x that is not finite or a norm that no float holds, or with v a g beyond the limit
// (limit.h): that bucket is coded as zeros, and v takes in what of g is within it. One pass over memory: 4 bytes per element and what is written, 12 with v.
bool qsgd_encode(const QsgdRule& rule, const float* g, float* v, std::size_t count, DrawKey key,
                 std::uint32_t first, std::uint8_t* out);
// target += share * value. False where a bucket is none that an encoder writes.
bool qsgd_add(const QsgdRule& rule, const std::uint8_t* in, std::size_t count, float share,
              float* target);

// One bucket, for forms other than the packed one: norm, levels (room for a whole bucket), signs.
bool qsgd_quantise(const QsgdRule& rule, const float* g, float* v, std::size_t count, DrawKey key,
                   std::uint32_t first, float& norm, std::uint8_t* levels, std::uint8_t* signs);
void qsgd_apply(const QsgdRule& rule, float norm, const std::uint8_t* levels,
                const std::uint8_t* signs, std::size_t count, float share, float* target);
// Whether an encoder could have written this norm; and this packed bucket of `count` elements: a
// sound norm, nothing but zeros behind one of 0, zeros behind the last sign and level.
bool qsgd_norm_is_sound(float norm);
bool qsgd_bucket_is_sound(const QsgdRule& rule, const std::uint8_t* in, std::size_t count);

// The same, one element after the other. Same bits.
bool qsgd_encode_reference(const QsgdRule& rule, const float* g, float* v, std::size_t count,
                           DrawKey key, std::uint32_t first, std::uint8_t* out);
bool qsgd_add_reference(const QsgdRule& rule, const std::uint8_t* in, std::size_t count,
                        float share, float* target);

bool qsgd_quantise_reference(const QsgdRule& rule, const float* g, float* v, std::size_t count,
                             DrawKey key, std::uint32_t first, float& norm, std::uint8_t* levels,
                             std::uint8_t* signs);
void qsgd_apply_reference(const QsgdRule& rule, float norm, const std::uint8_t* levels,
                          const std::uint8_t* signs, std::size_t count, float share, float* target);

// The numbers of a bucket, shared so that all agree on them.
struct QsgdScale {
  float norm = 0;
  float unit = 0;     // the value of level 1
  float inverse = 0;  // s / norm in units of the last place of l; 0 in a zero bucket
  bool finite = true;
};
QsgdScale qsgd_scale(const QsgdRule& rule, double norm);
constexpr unsigned qsgd_places(const QsgdRule& rule) { return rule.bits < 8 ? 16 : 15; }
// Added to a float below 2^23 it leaves the nearest integer in the low bits.
inline constexpr float qsgd_rounder = 0x1p23f;
// Whether the L2 norm can be made of this sum of squares.
constexpr bool qsgd_sum_is_sound(float sum) { return sum >= 0x1p-60f && sum <= 0x1p100f; }

}  // namespace thinwire
