// csc.cc: adds a gradient to the memory and computes the norm, one element at a time.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/csc.h"

#include <cmath>
#include <limits>

#include "thinwire/kernels/norm.h"

namespace thinwire {

void csc_add(const MemoryRule& rule, const float* g, float* u, float* v, std::size_t count,
             double* sums) {
  const bool has_v = rule.accumulate != Accumulate::none;
  const bool has_u = has_v && rule.accumulate != Accumulate::residual;
  for (std::size_t i = 0; i < count; ++i) {
    if (!within_limit(g[i])) {
      sums[i % 16] += std::numeric_limits<double>::infinity();
      continue;
    }
    float velocity = 0, fed = g[i];
    if (rule.accumulate == Accumulate::momentum) {
      velocity = rule.momentum * u[i] + g[i];
      fed = velocity;
    } else if (rule.accumulate == Accumulate::nesterov) {
      velocity = rule.momentum * (u[i] + g[i]);
      fed = velocity + g[i];
    }
    const float residual = has_v ? v[i] + fed : fed;
    sums[i % 16] += std::fabs(residual);
    if (has_u) u[i] = velocity;
    if (has_v) v[i] = residual;
  }
}

double csc_pass_reference(const MemoryRule& rule, const float* g, float* u, float* v,
                          std::size_t count) {
  double sums[16] = {};
  csc_add(rule, g, u, v, count, sums);
  return add_sums(sums);
}

}  // namespace thinwire
