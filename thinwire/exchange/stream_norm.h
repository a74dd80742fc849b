// stream_norm.h: the squared norm of all buckets in a stream; on the CPU it is done at once.
// Internal to StreamExchange.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "thinwire/core/view.h"

namespace thinwire {

// The norm of one gradient; `scratch` has norm_scratch(gradient.count) doubles (kernels/norm.h).
void enqueue_norm(const TensorView& gradient, double* scratch, double* out, Stream stream);

// The sum of the norms, in this order.
void enqueue_sum(const double* norms, std::size_t count, double* out, Device device, Stream stream);

}  // namespace thinwire
