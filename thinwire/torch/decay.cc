// decay.cc: one loop per form.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/torch/decay.h"

#include <cstdint>
#include <optional>

#include "thinwire/core/element.h"
#include "thinwire/core/error.h"
#include "thinwire/torch/layout.h"

namespace thinwire::ddp {
namespace {

template <typename E>
struct DecayArrays {
  const typename E::Stored* w;
  float* s;
  const typename E::Stored* g;
  typename E::Stored* sum;
  std::int64_t count;
};

template <typename E>
void decay_plain(const SgdRule& rule, float scale, const DecayArrays<E>& at) {
  const typename E::Stored* __restrict w = at.w, * __restrict g = at.g;
  float* __restrict s = at.s;
  typename E::Stored* __restrict sum = at.sum;
  for (std::int64_t i = 0; i < at.count; ++i) {
    s[i] = rule.momentum * s[i] + rule.decay * E::widen(w[i]);
    sum[i] = E::narrow(E::widen(g[i]) + scale * s[i]);
  }
}

template <typename E>
void decay_nesterov(const SgdRule& rule, float scale, const DecayArrays<E>& at) {
  const typename E::Stored* __restrict w = at.w, * __restrict g = at.g;
  float* __restrict s = at.s;
  typename E::Stored* __restrict sum = at.sum;
  for (std::int64_t i = 0; i < at.count; ++i) {
    const float d = rule.decay * E::widen(w[i]);
    s[i] = rule.momentum * (s[i] + d);
    sum[i] = E::narrow(E::widen(g[i]) + scale * (s[i] + d));
  }
}

// Dense, with the elements in the same order in memory; the strides of dimensions of size 1 say
// nothing of that.
bool lie_alike(const at::Tensor& a, const at::Tensor& b) {
  if (!b.is_non_overlapping_and_dense()) return false;
  for (std::int64_t i = 0; i < a.dim(); ++i)
    if (a.size(i) > 1 && a.stride(i) != b.stride(i)) return false;
  return true;
}

}  // namespace

void add_decay(const SgdRule& rule, float scale, const at::Tensor& weights, at::Tensor& memory,
               const at::Tensor& gradient, at::Tensor& sum) {
  const std::optional<DType> type = gradient_type(weights.scalar_type());
  for (const at::Tensor& tensor : {weights, memory, gradient, sum}) {
    const at::ScalarType wanted = tensor.is_same(memory) ? at::kFloat : weights.scalar_type();
    if (!type || tensor.scalar_type() != wanted || !tensor.is_cpu() || tensor.is_sparse() ||
        tensor.sizes() != weights.sizes())
      fail("weight decay: expected weights and gradient of one type (float32, bfloat16 or ",
           "float16), memory of float32, all on the CPU and of one shape, got ", tensor.toString(),
           " of ", tensor.numel(), " elements beside weights of ", weights.numel());
  }
  const bool alike = lie_alike(weights, weights) && lie_alike(weights, memory) &&
                     lie_alike(weights, gradient) && lie_alike(weights, sum);
  // Elements in different orders are copied into one order first, and back.
  const at::Tensor w = alike ? weights : weights.contiguous();
  const at::Tensor g = alike ? gradient : gradient.contiguous();
  const at::Tensor s = alike ? memory : memory.contiguous().clone();
  const at::Tensor total = alike ? sum : sum.contiguous().clone();
  with_element(*type, "weight decay", [&](auto element) {
    using E = decltype(element);
    using Stored = typename E::Stored;
    const DecayArrays<E> arrays{static_cast<const Stored*>(w.const_data_ptr()),
                                s.mutable_data_ptr<float>(),
                                static_cast<const Stored*>(g.const_data_ptr()),
                                static_cast<Stored*>(total.mutable_data_ptr()), w.numel()};
    (rule.nesterov ? decay_nesterov<E> : decay_plain<E>)(rule, scale, arrays);
  });
  if (alike) return;
  memory.copy_(s);
  sum.copy_(total);
}

}  // namespace thinwire::ddp
