// sign.cc: signs, one element after the other.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/sign.h"

#include <algorithm>

#include "thinwire/kernels/norm.h"

namespace thinwire {
namespace {

float sum_at(const float* g, const float* r, std::size_t i) {
  return r == nullptr ? g[i] : g[i] + r[i];
}

}  // namespace

std::size_t sign_scan_into(const float* g, const float* r, std::size_t count, std::uint8_t* bits,
                           double* highs, double* lows) {
  std::fill_n(bits, (count + 7) / 8, std::uint8_t{0});
  std::size_t below = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const float x = sum_at(g, r, i);
    if (x < 0) {
      bits[i / 8] = static_cast<std::uint8_t>(bits[i / 8] | 1u << i % 8);
      lows[i % 16] += static_cast<double>(x);
      ++below;
    } else {
      highs[i % 16] += static_cast<double>(x);
    }
  }
  return below;
}

SignSums sign_scan_reference(const float* g, const float* r, std::size_t count,
                             std::uint8_t* bits) {
  double highs[16] = {}, lows[16] = {};
  const std::size_t below = sign_scan_into(g, r, count, bits, highs, lows);
  return {add_sums(highs), add_sums(lows), below};
}

void sign_settle_reference(const float* g, float* r, std::size_t count, float high, float low) {
  for (std::size_t i = 0; i < count; ++i) {
    const float x = g[i] + r[i];
    r[i] = x - (x < 0 ? low : high);
  }
}

void sign_add_reference(const std::uint8_t* bits, std::size_t count, float high, float low,
                        float* target) {
  for (std::size_t i = 0; i < count; ++i) target[i] += (bits[i / 8] >> i % 8 & 1) != 0 ? low : high;
}

}  // namespace thinwire
