// csc.cc: adds a gradient to the memory and computes the norm, one element at a time.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/csc.h"

#include <cmath>
#include <limits>

#include "thinwire/kernels/norm.h"

namespace thinwire {

void csc_add(const MemoryRule& rule, const float* g, float* u, float* v, std::size_t count,
             double* sums) {
  const bool has_v = has_residual(rule.accumulate), has_u = has_momentum(rule.accumulate);
  for (std::size_t i = 0; i < count; ++i) {
    if (!within_limit(g[i])) {
      sums[i % 16] += std::numeric_limits<double>::infinity();
      continue;
    }
    const Kept now = accumulated(rule, g[i], {has_u ? u[i] : 0, has_v ? v[i] : 0});
    sums[i % 16] += std::fabs(now.v);
    if (has_u) u[i] = now.u;
    if (has_v) v[i] = now.v;
  }
}

double csc_pass_reference(const MemoryRule& rule, const float* g, float* u, float* v,
                          std::size_t count) {
  double sums[16] = {};
  csc_add(rule, g, u, v, count, sums);
  return add_sums(sums);
}

}  // namespace thinwire
