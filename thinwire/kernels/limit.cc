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

void take_out(Accumulate accumulate, float scale, const float* g, const float* sent, float* u,
              float* v, std::size_t count) {
  if (accumulate == Accumulate::none) return;
  for (std::size_t i = 0; i < count; ++i) {
    const float back = sent == nullptr ? 0 : sent[i];
    v[i] = taken_out(accumulate, scale * g[i], back, has_momentum(accumulate) ? u[i] : 0, v[i]);
  }
  if (has_momentum(accumulate)) std::fill_n(u, count, 0.0f);
}

}  // namespace thinwire
