// optimizer_adam.cc: computes what all elements of a step share, then runs one loop.
// SPDX-License-Identifier: Apache-2.0
#include "apps/train/optimizer_adam.h"

#include <cmath>

namespace thinwire::train {
namespace {

// Uses only products, because the last bit of std::pow may differ between machines.
double power(double base, std::uint64_t exponent) {
  double result = 1;
  for (; exponent > 0; exponent >>= 1) {
    if (exponent & 1) result *= base;
    base *= base;
  }
  return result;
}

template <bool decoupled>
void loop(const AdamFactors& f, const float* __restrict average, float* __restrict w,
          float* __restrict m, float* __restrict v, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const float g = decoupled ? average[i] : average[i] + f.decay * w[i];
    const float start = decoupled ? w[i] * f.decay : w[i];
    m[i] = f.keep1 * m[i] + f.take1 * g;
    v[i] = f.keep2 * v[i] + f.take2 * g * g;
    w[i] = start - f.size * (m[i] / (std::sqrt(v[i]) / f.root + f.epsilon));
  }
}

}  // namespace

AdamFactors adam_factors(const AdamRule& rule, double rate, std::uint64_t update) {
  const auto rounded = [](double value) { return static_cast<float>(value); };
  return {.keep1 = rounded(rule.beta1),
          .take1 = rounded(1 - rule.beta1),
          .keep2 = rounded(rule.beta2),
          .take2 = rounded(1 - rule.beta2),
          .size = rounded(rate / (1 - power(rule.beta1, update))),
          .root = rounded(std::sqrt(1 - power(rule.beta2, update))),
          .epsilon = rounded(rule.epsilon),
          .decay = rounded(rule.decoupled ? 1 - rate * rule.decay : rule.decay)};
}

void adam_step(const AdamRule& rule, double rate, std::uint64_t update, const float* average,
               float* w, float* m, float* v, std::size_t count) {
  const AdamFactors factors = adam_factors(rule, rate, update);
  (rule.decoupled ? loop<true> : loop<false>)(factors, average, w, m, v, count);
}

}  // namespace thinwire::train
