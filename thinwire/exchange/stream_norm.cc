// stream_norm.cc: norms by the kernels of the CPU or of CUDA.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/exchange/stream_norm.h"

#include "thinwire/kernels/norm.h"

namespace thinwire {

void enqueue_norm(const TensorView& gradient, double* scratch, double* out, Stream stream) {
  if (gradient.device.kind == Device::Kind::cpu) {
    *out = squared_norm(gradient.dtype, gradient.data, gradient.count);
  } else {
    squared_norm_cuda(gradient.dtype, gradient.data, gradient.count, scratch, out, stream);
  }
}

void enqueue_sum(const double* norms, std::size_t count, double* out, Device device,
                 Stream stream) {
  if (device.kind != Device::Kind::cpu) return add_norms_cuda(norms, count, out, stream);
  *out = 0;
  for (std::size_t i = 0; i < count; ++i) *out += norms[i];
}

}  // namespace thinwire
