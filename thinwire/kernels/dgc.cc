// dgc.cc: Deep Gradient Compression, one element at a time.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/dgc.h"

#include <cmath>

namespace thinwire {

DgcTally dgc_pass_reference(const DgcRule& rule, const float* g, float* u, float* v,
                            std::size_t count, std::uint32_t first, const Picked& out) {
  const bool has_v = has_residual(rule.accumulate), has_u = has_momentum(rule.accumulate);
  const MemoryRule memory{rule.accumulate, rule.momentum};
  DgcTally tally;
  for (std::size_t i = 0; i < count; ++i) {
    const float d = rule.scale * g[i];
    if (!within_limit(d)) {
      tally.finite = false;
      continue;
    }
    Kept now = accumulated(memory, d, {has_u ? u[i] : 0, has_v ? v[i] : 0});
    if (std::fabs(now.v) >= rule.threshold) {
      out.index[tally.picked] = first + static_cast<std::uint32_t>(i);
      out.value[tally.picked] = now.v;
      if (has_u) out.velocity[tally.picked] = now.u;
      ++tally.picked;
      now = {};
    }
    if (has_u) u[i] = now.u;
    if (has_v) v[i] = now.v;
  }
  return tally;
}

}  // namespace thinwire
