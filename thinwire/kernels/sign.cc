// sign.cc: signs, one element after the other.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/sign.h"

#include <algorithm>
#include <cmath>

#include "thinwire/kernels/norm.h"

namespace thinwire {
namespace {

float sum_at(const float* g, const float* r, std::size_t i) {
  return r == nullptr ? g[i] : g[i] + r[i];
}

}  // namespace

void SignAccumulator::end_block() {
  for (std::size_t k = 0; k < 16; ++k) {
    high[k] += static_cast<double>(high_part[k]);
    low[k] += static_cast<double>(low_part[k]);
    high_part[k] = low_part[k] = 0;
  }
  at = 0;
}

void SignAccumulator::take(const float* g, const float* r, std::size_t count, std::uint8_t* bits) {
  std::fill_n(bits, (count + 7) / 8, std::uint8_t{0});
  for (std::size_t i = 0; i < count; ++i) {
    const float x = sum_at(g, r, i);
    if (x < 0) {
      bits[i / 8] = static_cast<std::uint8_t>(bits[i / 8] | 1u << i % 8);
      low_part[at % 16] += x;
      ++lows;
    } else {
      high_part[at % 16] += x;
    }
    if (++at == 128) end_block();
  }
}

SignSums SignAccumulator::sums(const float* g, const float* r, std::size_t count) {
  end_block();
  const SignSums fast{add_sums(high), add_sums(low), lows};
  if (std::isfinite(fast.high) && std::isfinite(fast.low)) return fast;
  double highs[16] = {}, wide_lows[16] = {};
  for (std::size_t i = 0; i < count; ++i) {
    const float x = sum_at(g, r, i);
    double& sum = x < 0 ? wide_lows[i % 16] : highs[i % 16];
    sum += static_cast<double>(x);
  }
  return {add_sums(highs), add_sums(wide_lows), lows};
}

SignSums sign_scan_reference(const float* g, const float* r, std::size_t count,
                             std::uint8_t* bits) {
  SignAccumulator all;
  all.take(g, r, count, bits);
  return all.sums(g, r, count);
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
