// decay.h: weight decay for schemes that hold the momentum. Without its momentum, the optimizer
// would apply only a tenth of the decay (at 0.9). So decay gets the same momentum here, before each
// optimizer step. The formula is that of kernels/sgd.h.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include "thinwire/kernels/sgd.h"

namespace thinwire::ddp {

// With d = decay*w: memory becomes m*memory + d (Nesterov: m*(memory + d)). `sum`, which the
// optimizer takes for its gradient, becomes gradient + scale*memory (Nesterov: with memory + d).
// On the CPU, all of one shape; memory is float32, the others have the type of the weights.
// `rule.rate` is not used.
void add_decay(const SgdRule& rule, float scale, const at::Tensor& weights, at::Tensor& memory,
               const at::Tensor& gradient, at::Tensor& sum);

}  // namespace thinwire::ddp
