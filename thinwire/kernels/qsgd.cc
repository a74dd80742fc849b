// qsgd.cc: random levels, one element at a time.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/qsgd.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "thinwire/kernels/limit.h"
#include "thinwire/kernels/norm.h"

namespace thinwire {
namespace {

double l2_norm(const float* x, std::size_t count) {
  float sums[32] = {};
  for (std::size_t i = 0; i < count; ++i) sums[i % 32] += x[i] * x[i];
  for (std::size_t half = 16; half > 0; half /= 2) {
    for (std::size_t i = 0; i < half; ++i) sums[i] += sums[i + half];
  }
  if (qsgd_sum_is_sound(sums[0])) return std::sqrt(sums[0]);
  return std::sqrt(sum_of_squares(x, count));
}

double norm_of(const QsgdRule& rule, const float* x, std::size_t count) {
  if (!rule.largest) return l2_norm(x, count);
  float most = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (!std::isfinite(x[i])) return std::numeric_limits<double>::infinity();
    most = std::max(most, std::abs(x[i]));
  }
  return most;
}

}  // namespace

bool qsgd_bucket_is_sound(const QsgdRule& rule, const std::uint8_t* in, std::size_t count) {
  float norm = 0;
  std::memcpy(&norm, in, 4);
  const std::uint8_t* const signs = in + 4;
  const std::uint8_t* const levels = signs + level_bytes(count, 1);
  const std::uint8_t* const end = in + qsgd_bucket_bytes(rule, count);
  return qsgd_norm_is_sound(norm) && level_padding_is_zero(signs, count, 1) &&
         level_padding_is_zero(levels, count, rule.bits) &&
         (norm > 0 || std::all_of(signs, end, [](std::uint8_t byte) { return byte == 0; }));
}

bool qsgd_quantise_reference(const QsgdRule& rule, const float* g, float* v, std::size_t count,
                             DrawKey key, std::uint32_t first, float& norm, std::uint8_t* levels,
                             std::uint8_t* signs) {
  float x[qsgd_most];
  for (std::size_t i = 0; i < count; ++i) x[i] = v == nullptr ? g[i] : taken_in(g[i], v[i]);
  const QsgdScale scale = qsgd_scale(rule, norm_of(rule, x, count));
  norm = scale.norm;
  std::fill_n(levels, count, std::uint8_t{0});
  std::fill_n(signs, level_bytes(count, 1), std::uint8_t{0});
  if (!scale.finite) {
    if (v != nullptr) add_within_limit(g, v, count);
    return false;
  }
  if (norm > 0) pack_signs(x, count, signs);
  for (std::size_t i = 0; i < count; ++i) {
    levels[i] = qsgd_level(rule, std::abs(x[i]), scale.inverse,
                           draw_at(key, first + static_cast<std::uint32_t>(i)));
    const float sent = static_cast<float>(levels[i]) * scale.unit;
    if (v != nullptr) v[i] = x[i] - (sign_at(signs, i) ? -sent : sent);
  }
  return true;
}

void qsgd_apply_reference(const QsgdRule& rule, float norm, const std::uint8_t* levels,
                          const std::uint8_t* signs, std::size_t count, float share,
                          float* target) {
  const float unit = qsgd_scale(rule, norm).unit * share;
  for (std::size_t i = 0; i < count; ++i) {
    const float value = static_cast<float>(levels[i]) * unit;
    target[i] += sign_at(signs, i) ? -value : value;
  }
}

bool qsgd_encode_reference(const QsgdRule& rule, const float* g, float* v, std::size_t count,
                           DrawKey key, std::uint32_t first, std::uint8_t* out) {
  bool finite = true;
  std::uint8_t levels[qsgd_most];
  for (std::size_t at = 0; at < count; at += rule.bucket) {
    const std::size_t size = std::min(rule.bucket, count - at);
    float norm = 0;
    finite =
        qsgd_quantise_reference(rule, g + at, v == nullptr ? nullptr : v + at, size, key,
                                first + static_cast<std::uint32_t>(at), norm, levels, out + 4) &&
        finite;
    std::memcpy(out, &norm, 4);
    pack_levels(levels, size, rule.bits, out + 4 + level_bytes(size, 1));
    out += qsgd_bucket_bytes(rule, size);
  }
  return finite;
}

bool qsgd_add_reference(const QsgdRule& rule, const std::uint8_t* in, std::size_t count,
                        float share, float* target) {
  std::uint8_t levels[qsgd_most];
  for (std::size_t at = 0; at < count; at += rule.bucket) {
    const std::size_t size = std::min(rule.bucket, count - at);
    float norm = 0;
    std::memcpy(&norm, in, 4);
    if (!qsgd_bucket_is_sound(rule, in, size)) return false;
    unpack_levels(in + 4 + level_bytes(size, 1), size, rule.bits, levels);
    qsgd_apply_reference(rule, norm, levels, in + 4, size, share, target + at);
    in += qsgd_bucket_bytes(rule, size);
  }
  return true;
}

}  // namespace thinwire
