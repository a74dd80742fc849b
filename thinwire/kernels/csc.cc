// csc.cc: adds a gradient to the memory and computes the norm, one element at a time.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/csc.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "thinwire/kernels/norm.h"

namespace thinwire {

void csc_add(const MemoryRule& rule, const float* g, float* u, float* v, std::size_t count,
             double* sums) {
  const bool has_v = has_residual(rule.accumulate), has_u = has_momentum(rule.accumulate);
  for (std::size_t i = 0; i < count; ++i) {
    if (!within_limit(g[i])) {
      sums[i % csc_sums] += std::numeric_limits<double>::infinity();
      continue;
    }
    const Kept now = accumulated(rule, g[i], {has_u ? u[i] : 0, has_v ? v[i] : 0});
    sums[i % csc_sums] += std::fabs(now.v);
    if (has_u) u[i] = now.u;
    if (has_v) v[i] = now.v;
  }
}

double csc_pass_reference(const MemoryRule& rule, const float* g, float* u, float* v,
                          std::size_t count) {
  double blocks[csc_sums] = {};
  for (std::size_t at = 0; at < count; at += csc_block) {
    double sums[csc_sums] = {};
    csc_add(rule, g + at, u == nullptr ? nullptr : u + at, v == nullptr ? nullptr : v + at,
            std::min(csc_block, count - at), sums);
    blocks[at / csc_block % csc_sums] += add_tree<csc_sums>(sums);
  }
  return add_tree<csc_sums>(blocks);
}

}  // namespace thinwire
