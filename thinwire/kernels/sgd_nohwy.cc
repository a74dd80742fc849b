// sgd_nohwy.cc: the step of the weights where Highway is not installed.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/sgd.h"

namespace thinwire {

void sgd_step(const SgdRule& rule, const float* average, float* w, float* s, std::size_t count) {
  sgd_step_reference(rule, average, w, s, count);
}

}  // namespace thinwire
