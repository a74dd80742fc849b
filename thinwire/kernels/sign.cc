// sign.cc: signs, one element at a time.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/sign.h"

#include <algorithm>
#include <cmath>

#include "thinwire/kernels/limit.h"
#include "thinwire/kernels/norm.h"

namespace thinwire {
namespace {

float scanned(const float* g, const float* r, std::size_t i) {
  return r == nullptr ? g[i] : taken_in(g[i], r[i]);
}

// Sixteen sums of one side: in float for the current block, in double for all earlier blocks.
struct Side {
  double sums[16] = {};
  float parts[16] = {};

  void end_block() {
    for (std::size_t k = 0; k < 16; ++k) {
      sums[k] += static_cast<double>(parts[k]);
      parts[k] = 0;
    }
  }
};

}  // namespace

SignSums sign_scan_reference(const float* g, const float* r, std::size_t count,
                             std::uint8_t* bits) {
  Side high, low;
  std::size_t lows = 0;
  std::fill_n(bits, (count + 7) / 8, std::uint8_t{0});
  for (std::size_t i = 0; i < count; ++i) {
    const float x = scanned(g, r, i);
    if (x < 0) {
      bits[i / 8] = static_cast<std::uint8_t>(bits[i / 8] | 1u << i % 8);
      ++lows;
    }
    (x < 0 ? low : high).parts[i % 16] += x;
    if (i % 128 == 127 || i + 1 == count) {
      high.end_block();
      low.end_block();
    }
  }
  const SignSums fast{add_sums(high.sums), add_sums(low.sums), lows};
  if (std::isfinite(fast.high) && std::isfinite(fast.low)) return fast;
  double highs[16] = {}, wide_lows[16] = {};
  for (std::size_t i = 0; i < count; ++i) {
    const float x = scanned(g, r, i);
    double& sum = x < 0 ? wide_lows[i % 16] : highs[i % 16];
    sum += static_cast<double>(x);
  }
  return {add_sums(highs), add_sums(wide_lows), lows};
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
