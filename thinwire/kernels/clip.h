// clip.h: the factor of local clipping, for host and CUDA code.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <limits>

#include "thinwire/core/cuda.h"

namespace thinwire {

// The factor that brings a gradient with this squared norm to a norm of at most `limit`. NaN when
// the norm is not finite: the memory then refuses every element.
THINWIRE_HD inline float clip_factor(double squared_norm, double limit) {
  if (!std::isfinite(squared_norm)) return std::numeric_limits<float>::quiet_NaN();
  const double norm = std::sqrt(squared_norm);
  return norm > limit ? static_cast<float>(limit / norm) : 1.0f;
}

}  // namespace thinwire
