// optimizer_adam.h: one step of Adam or AdamW, as torch.optim defines them. g is the average, and t
// is the number of updates including this one:
//
//     adam    g += decay*w             adamw   w *= 1 - rate*decay
//     m = beta1*m + (1 - beta1)*g      v = beta2*v + (1 - beta2)*g*g
//     w -= rate/(1 - beta1^t) * m / (sqrt(v)/sqrt(1 - beta2^t) + epsilon)
//
// Per element, each operation is rounded separately, and everything that depends on t comes from
// products in double precision. So every machine computes the same bits, whatever its math library.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace thinwire::train {

struct AdamRule {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double decay = 0;
  bool decoupled = false;  // AdamW
};

// What all elements of a step share.
struct AdamFactors {
  float keep1, take1, keep2, take2;  // factors for m and v
  float size, root, epsilon;         // w -= size * m / (sqrt(v) / root + epsilon)
  float decay;  // for w: added to the gradient, or the factor that AdamW applies to w
};
AdamFactors adam_factors(const AdamRule& rule, double rate, std::uint64_t update);

// `m` and `v` start at zero, `update` at 1.
void adam_step(const AdamRule& rule, double rate, std::uint64_t update, const float* average,
               float* w, float* m, float* v, std::size_t count);

}  // namespace thinwire::train
