// dgc_rule.h: the accumulation of one element, for host and CUDA code (dgc.h has the formulas).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <limits>

#include "thinwire/core/cuda.h"
#include "thinwire/kernels/limit.h"

namespace thinwire {

// The memory of one element.
struct DgcPair {
  float u = 0, v = 0;
};

// The factor of a gradient with this squared norm that may have a norm of `limit`. NaN when the norm
// is not finite: the memory then refuses every element.
THINWIRE_HD inline float clip_factor(double squared_norm, double limit) {
  if (!std::isfinite(squared_norm)) return std::numeric_limits<float>::quiet_NaN();
  const double norm = std::sqrt(squared_norm);
  return norm > limit ? static_cast<float>(limit / norm) : 1.0f;
}

// The memory after taking in d, the scaled gradient, which is within the limit.
THINWIRE_HD inline DgcPair dgc_advance(Accumulate accumulate, float momentum, float d,
                                       DgcPair old) {
  switch (accumulate) {
    case Accumulate::none:
      return {old.u, d};
    case Accumulate::residual:
      return {old.u, old.v + d};
    case Accumulate::momentum: {
      const float u = momentum * old.u + d;
      return {u, old.v + u};
    }
    case Accumulate::nesterov: {
      const float u = momentum * (old.u + d);
      return {u, old.v + (u + d)};
    }
  }
  return old;
}

}  // namespace thinwire
