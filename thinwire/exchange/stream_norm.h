// stream_norm.h: the norm of a gradient that lies on a device, for clipping. The values stay there.
// Internal to StreamExchange.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "thinwire/core/view.h"

namespace thinwire {

// The doubles of device memory that enqueue_norm() needs.
std::size_t norm_scratch(std::size_t elements);

// Enqueues *out = the squared norm of the gradient, with the bits of squared_norm() on the CPU.
void enqueue_norm(const TensorView& gradient, double* scratch, double* out, Stream stream);

// Enqueues *out = norms[0] + norms[1] + ..., added in this order.
void enqueue_sum(const double* norms, std::size_t count, double* out, Stream stream);

}  // namespace thinwire
