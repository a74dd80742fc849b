// decay.cc: one loop per form.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/torch/decay.h"

#include <cstdint>

#include "thinwire/core/error.h"

namespace thinwire::ddp {
namespace {

void plain(const SgdRule& rule, const float* __restrict w, float* __restrict s, float* __restrict g,
           std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    s[i] = rule.momentum * s[i] + rule.decay * w[i];
    g[i] += s[i];
  }
}

void nesterov(const SgdRule& rule, const float* __restrict w, float* __restrict s,
              float* __restrict g, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    const float d = rule.decay * w[i];
    s[i] = rule.momentum * (s[i] + d);
    g[i] += s[i] + d;
  }
}

// The same place for the same element: strides of dimensions of size 1 mean nothing.
bool same_layout(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes()) return false;
  for (std::int64_t i = 0; i < a.dim(); ++i)
    if (a.size(i) > 1 && a.stride(i) != b.stride(i)) return false;
  return true;
}

bool is_flat(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kFloat && tensor.is_cpu() &&
         tensor.is_non_overlapping_and_dense();
}

}  // namespace

void add_decay(const SgdRule& rule, const at::Tensor& weights, at::Tensor& memory,
               at::Tensor& gradient) {
  const bool alike = same_layout(weights, memory) && same_layout(weights, gradient);
  if (!is_flat(weights) || !is_flat(memory) || !is_flat(gradient) || !alike)
    fail(
        "weight decay: expected weights, memory and gradient of float32 on the CPU with the same "
        "strides");
  const auto* const w = weights.const_data_ptr<float>();
  auto* const s = memory.mutable_data_ptr<float>();
  auto* const g = gradient.mutable_data_ptr<float>();
  (rule.nesterov ? nesterov : plain)(rule, w, s, g, weights.numel());
}

}  // namespace thinwire::ddp
