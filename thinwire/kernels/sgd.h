// sgd.h: the optimizer half of Deep Gradient Compression. Momentum of the gradient lives in dgc.h,
// before compression; what is left for the optimizer is the step, and weight decay. Decay comes
// from the weights, which all workers share, so each worker computes it with a momentum of its own
// and nothing of it is ever sent. Per element, all products and sums rounded singly, with d =
// decay*w:
//
//     momentum   s' = m*s + d     w' = w - rate*(average + s')
//     nesterov   s' = m*(s + d)   w' = w - rate*(average + (s' + d))
//
// Together with dgc.h this is SGD with momentum m on gradient + decay*w.
// 20 bytes of memory traffic per element: read average, w, s, write w, s; 12 without decay.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace thinwire {

struct SgdRule {
  float rate = 0.1f;
  float momentum = 0.9f;  // of the decay
  float decay = 0.0f;
  bool nesterov = false;
};

// One step of `count` weights. `average` is the mean of what the workers sent. `s` starts as zeros;
// it may be null when decay is 0, and the step is then w - rate*average.
void sgd_step(const SgdRule& rule, const float* average, float* w, float* s, std::size_t count);

// The same, one element after the other. Same bits.
void sgd_step_reference(const SgdRule& rule, const float* average, float* w, float* s,
                        std::size_t count);

}  // namespace thinwire
