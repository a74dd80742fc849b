// sgd.h: the optimizer step for Deep Gradient Compression. The momentum of the gradient is applied
// before compression (dgc.h); the optimizer is left with the step and the weight decay. Decay
// follows from the weights, which all workers share, so each worker computes it locally, with a
// momentum of its own, and nothing of it is sent. Per element, with d = decay*w and every product
// and sum rounded:
//
//     momentum   s' = m*s + d     w' = w - rate*(average + s')
//     nesterov   s' = m*(s + d)   w' = w - rate*(average + (s' + d))
//
// Together with dgc.h this is SGD with momentum m on gradient + decay*w.
// 20 bytes of memory traffic per element: read average, w, s; write w, s. 12 bytes without decay.
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

// One step of `count` weights. `average` is the mean over the workers. `s` starts as zeros. It may
// be null when decay is 0; the step is then w - rate*average.
void sgd_step(const SgdRule& rule, const float* average, float* w, float* s, std::size_t count);

// The plain reference. Same bits.
void sgd_step_reference(const SgdRule& rule, const float* average, float* w, float* s,
                        std::size_t count);

}  // namespace thinwire
