// sgd.cc: the step of the weights, one element at a time.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/sgd.h"

namespace thinwire {

void sgd_step_reference(const SgdRule& rule, const float* average, float* w, float* s,
                        std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    float step = average[i];
    if (s != nullptr) {
      const float d = rule.decay * w[i];
      s[i] = rule.nesterov ? rule.momentum * (s[i] + d) : rule.momentum * s[i] + d;
      step += rule.nesterov ? s[i] + d : s[i];
    }
    w[i] -= rule.rate * step;
  }
}

}  // namespace thinwire
