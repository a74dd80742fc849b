// stream_widened.h: a compressor of f32 gradients for buckets of f16 and bf16, under the contract
// of a device: widened before it, narrowed behind it, as compress/widened.h does on the CPU.
// Schemes widen in their kernels; stripes (stream_striped.h) do not.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "thinwire/compress/compressor.h"

namespace thinwire {

// `inner` is for the widened bucket. Returns it as it is for a bucket of f32.
std::unique_ptr<Compressor> stream_widened(std::unique_ptr<Compressor> inner, const Bucket& bucket,
                                           Device device);

}  // namespace thinwire
