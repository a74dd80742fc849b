// average_nohwy.cc: sums to means where Highway is not installed.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/average.h"

namespace thinwire {

bool scale_finite(float* x, std::size_t count, float factor) {
  return scale_finite_reference(x, count, factor);
}

}  // namespace thinwire
