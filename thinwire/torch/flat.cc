// flat.cc: copies between tensors and flat arrays.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/torch/flat.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <cstdint>

namespace thinwire::ddp {

Flat::Flat(const std::vector<Bucket>& buckets) {
  for (const Bucket& bucket : buckets) {
    arrays_.push_back(at::zeros({static_cast<std::int64_t>(bucket.elements())}, at::kFloat));
    for (const Parameter& parameter : bucket.parameters) {
      const auto offset = static_cast<std::int64_t>(parameter.offset);
      const auto count = static_cast<std::int64_t>(parameter.count);
      places_.push_back(arrays_.back().narrow(0, offset, count).view(parameter.shape));
    }
  }
}

Arrays Flat::arrays() const {
  Arrays spans;
  for (const at::Tensor& array : arrays_)
    spans.emplace_back(array.data_ptr<float>(), static_cast<std::size_t>(array.numel()));
  return spans;
}

void Flat::take(const std::vector<at::Tensor>& tensors) {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < places_.size(); ++i)
    if (tensors[i].defined()) places_[i].copy_(tensors[i]);
}

void Flat::give(const std::vector<at::Tensor>& tensors) const {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < places_.size(); ++i)
    if (tensors[i].defined()) tensors[i].copy_(places_[i]);
}

}  // namespace thinwire::ddp
