// widened.h: a compressor of f32 for gradients of f16 or bf16 on the CPU. It widens the gradient
// into an array of its own, runs the scheme on that, and rounds the average (to nearest, ties to
// even). Memory and frames are those of the widened gradient, so they have the bits of a GPU, where
// kernels widen an element when they read it. It costs 4 bytes of memory per element, and 18 bytes
// of memory traffic per element and step.
//
// An average that f16 cannot hold skips the step: every rank sees it, and all memories keep what
// was sent. A GradScaler then lowers its scale.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "thinwire/compress/compressor.h"

namespace thinwire {

// What a scheme on the CPU sees of a bucket: the same one, with gradients of f32.
Bucket widened(Bucket bucket);

// `inner`, made for widened(bucket), as a compressor for `bucket`. Where the bucket's gradients are
// f32 that is `inner` itself.
std::unique_ptr<Compressor> widened(std::unique_ptr<Compressor> inner, const Bucket& bucket);

}  // namespace thinwire
