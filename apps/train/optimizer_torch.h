// optimizer_torch.h: the updates of optimizer.h as torch operations, for weights on any device.
// They are enqueued in the current stream. Every product and sum is an operation of its own: fused
// ones round once where the CPU's loops round twice. So every device computes the same bits. No
// torch here.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "apps/train/optimizer_adam.h"
#include "thinwire/core/view.h"
#include "thinwire/kernels/sgd.h"

namespace thinwire::train {

// torch.optim.SGD. `v` is empty without momentum.
void torch_momentum_step(const SgdRule& rule, const TensorView& average, const TensorView& w,
                         const TensorView& v);
// sgd_step() of thinwire/kernels/sgd.h. `s` is empty without decay.
void torch_sgd_step(const SgdRule& rule, const TensorView& average, const TensorView& w,
                    const TensorView& s);
// adam_step() of optimizer_adam.h.
void torch_adam_step(const AdamRule& rule, double rate, std::uint64_t update,
                     const TensorView& average, const TensorView& w, const TensorView& m,
                     const TensorView& v);

// values *= factor
void torch_scale(const TensorView& values, float factor);

}  // namespace thinwire::train
