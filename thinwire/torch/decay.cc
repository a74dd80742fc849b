// decay.cc: one loop per form.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/torch/decay.h"

#include <cstdint>

#include "thinwire/core/error.h"

namespace thinwire::ddp {
namespace {

struct DecayArrays {
  const float* w;
  float* s;
  const float* g;
  float* sum;
  std::int64_t count;
};

void decay_plain(const SgdRule& rule, float scale, const DecayArrays& at) {
  const float* __restrict w = at.w, * __restrict g = at.g;
  float* __restrict s = at.s, * __restrict sum = at.sum;
  for (std::int64_t i = 0; i < at.count; ++i) {
    s[i] = rule.momentum * s[i] + rule.decay * w[i];
    sum[i] = g[i] + scale * s[i];
  }
}

void decay_nesterov(const SgdRule& rule, float scale, const DecayArrays& at) {
  const float* __restrict w = at.w, * __restrict g = at.g;
  float* __restrict s = at.s, * __restrict sum = at.sum;
  for (std::int64_t i = 0; i < at.count; ++i) {
    const float d = rule.decay * w[i];
    s[i] = rule.momentum * (s[i] + d);
    sum[i] = g[i] + scale * (s[i] + d);
  }
}

bool is_float(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kFloat && tensor.is_cpu() && !tensor.is_sparse();
}

// Whether all are dense, with the elements in the same memory order. Strides of dimensions of size
// 1 do not matter.
bool lie_alike(const at::Tensor& a, const at::Tensor& b) {
  if (!b.is_non_overlapping_and_dense()) return false;
  for (std::int64_t i = 0; i < a.dim(); ++i)
    if (a.size(i) > 1 && a.stride(i) != b.stride(i)) return false;
  return true;
}

}  // namespace

void add_decay(const SgdRule& rule, float scale, const at::Tensor& weights, at::Tensor& memory,
               const at::Tensor& gradient, at::Tensor& sum) {
  for (const at::Tensor& tensor : {weights, memory, gradient, sum})
    if (!is_float(tensor) || tensor.sizes() != weights.sizes())
      fail("weight decay: expected weights, memory and gradient of float32 on the CPU and of one ",
           "shape, got ", tensor.toString(), " of ", tensor.numel(), " elements beside weights of ",
           weights.numel());
  const bool alike = lie_alike(weights, weights) && lie_alike(weights, memory) &&
                     lie_alike(weights, gradient) && lie_alike(weights, sum);
  // Elements in different orders are copied into one order first, and back.
  const at::Tensor w = alike ? weights : weights.contiguous();
  const at::Tensor g = alike ? gradient : gradient.contiguous();
  const at::Tensor s = alike ? memory : memory.contiguous().clone();
  const at::Tensor total = alike ? sum : sum.contiguous().clone();
  const DecayArrays arrays{w.const_data_ptr<float>(), s.mutable_data_ptr<float>(),
                           g.const_data_ptr<float>(), total.mutable_data_ptr<float>(), w.numel()};
  (rule.nesterov ? decay_nesterov : decay_plain)(rule, scale, arrays);
  if (alike) return;
  memory.copy_(s);
  sum.copy_(total);
}

}  // namespace thinwire::ddp
