// limit.cc: the limit of a gradient, one element at a time.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/limit.h"

#include <algorithm>

namespace thinwire {

bool all_within_limit_reference(const float* x, std::size_t count) {
  return std::all_of(x, x + count, [](float value) { return within_limit(value); });
}

void add_within_limit(const float* g, float* v, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    if (within_limit(g[i])) v[i] += g[i];
  }
}

void take_out(const MemoryRule& rule, float scale, const float* g, const float* sent, float* u,
              float* v, std::size_t count) {
  if (!has_residual(rule.accumulate)) return;
  const bool has_u = has_momentum(rule.accumulate);
  for (std::size_t i = 0; i < count; ++i) {
    const float back = sent == nullptr ? 0 : sent[i];
    const Kept kept = taken_out(rule, scale * g[i], back, {has_u ? u[i] : 0, v[i]});
    v[i] = kept.v;
    if (has_u) u[i] = kept.u;
  }
}

}  // namespace thinwire
