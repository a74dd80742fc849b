// stream_norm_cuda.cc: norms by the kernels of CUDA.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/exchange/stream_norm.h"
#include "thinwire/kernels/norm.h"

namespace thinwire {

std::size_t norm_scratch(std::size_t elements) { return squared_norm_scratch(elements); }

void enqueue_norm(const TensorView& gradient, double* scratch, double* out, Stream stream) {
  squared_norm_cuda(gradient.data, gradient.dtype, gradient.count, scratch, out, stream);
}

void enqueue_sum(const double* norms, std::size_t count, double* out, Stream stream) {
  add_norms_cuda(norms, static_cast<int>(count), out, stream);
}

}  // namespace thinwire
