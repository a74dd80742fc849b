// stripe.h: verdicts and means of stripes (exchange split) on a device. Each stripe is decoded
// under a verdict of its own, because its frames name the stripe where the step's verdict names the
// bucket, and because an owner learns alone that its stripe is void.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "thinwire/core/device.h"
#include "thinwire/core/verdict.h"
#include "thinwire/kernels/limit.h"

namespace thinwire {

// A stripe's verdict to begin with: that of the step on this rank's gradient. Without a step: what
// is decoded or encoded is no gradient of this rank.
THINWIRE_HD inline Verdict stripe_verdict(const Verdict* step) {
  return {step == nullptr ? 0 : step->unsound, 0, 0};
}

// The step's verdict after that of a stripe. `owner` sent the bytes; -1: the fault knows who did.
THINWIRE_HD inline Verdict joined_verdict(Verdict step, const Verdict& stripe, std::int32_t owner,
                                          std::uint32_t bucket) {
  if (stripe.skipped != 0) step.skipped = 1;
  if (stripe.fault != 0 && step.fault == 0)
    step.fault = fault_of(
        static_cast<Code>(stripe.fault & 0xff),
        owner < 0 ? static_cast<std::uint32_t>(stripe.fault >> 32) : std::uint32_t(owner), bucket);
  return step;
}

// An element of an owner's average. A void one is NaN, which changes no memory, and whose frame
// tells all ranks to skip the step. Gradients that are sound may still add up beyond the limit over
// many steps. Refusing them would refuse every later step too.
THINWIRE_HD inline float owned_mean(float x, bool is_void) {
  if (is_void) return std::numeric_limits<float>::quiet_NaN();
  return x > gradient_limit ? gradient_limit : x < -gradient_limit ? -gradient_limit : x;
}

// The rules above in a stream, for arrays in device memory.
void open_stripes_cuda(Verdict* stripes, std::size_t count, const Verdict* step, Stream stream);
void join_stripes_cuda(Verdict* step, const Verdict* stripes, const std::int32_t* owners,
                       std::size_t count, std::uint32_t bucket, Stream stream);
void owned_mean_cuda(float* mean, std::size_t count, const Verdict* stripe, Stream stream);

}  // namespace thinwire
