// stream_norm_nocuda.cc: the same on the CPU, where streams are null.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/exchange/stream_norm.h"
#include "thinwire/kernels/norm.h"

namespace thinwire {

std::size_t norm_scratch(std::size_t) { return 0; }

void enqueue_norm(const TensorView& gradient, double*, double* out, Stream) {
  *out = squared_norm(gradient.f32().data(), gradient.count);
}

void enqueue_sum(const double* norms, std::size_t count, double* out, Stream) {
  *out = 0;
  for (std::size_t i = 0; i < count; ++i) *out += norms[i];
}

}  // namespace thinwire
