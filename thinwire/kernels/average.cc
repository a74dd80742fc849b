// average.cc: sums to means, one element at a time.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/average.h"

#include <cmath>

namespace thinwire {

bool scale_finite_reference(float* x, std::size_t count, float factor) {
  bool finite = true;
  for (std::size_t i = 0; i < count; ++i) {
    x[i] *= factor;
    finite = std::isfinite(x[i]) && finite;
  }
  return finite;
}

}  // namespace thinwire
