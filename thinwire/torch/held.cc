// held.cc: a hook per parameter, which autograd calls before it adds to .grad.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/torch/held.h"

#include <ATen/ops/count_nonzero.h>

#include <algorithm>

namespace thinwire::ddp {
namespace {

bool is_clear(const at::Tensor& gradient) {
  if (!gradient.defined()) return true;
  if (gradient.is_sparse() || gradient.scalar_type() != at::kFloat || !gradient.is_cpu() ||
      !gradient.is_non_overlapping_and_dense())
    return gradient.count_nonzero().item<std::int64_t>() == 0;
  const auto* const values = gradient.const_data_ptr<float>();
  return std::all_of(values, values + gradient.numel(), [](float value) { return value == 0; });
}

}  // namespace

Held::~Held() {
  for (const Watched& one : watched_) one.parameter.remove_hook(one.hook);
}

void Held::watch(const at::Tensor& parameter) {
  const auto held = std::make_shared<bool>(false);
  // The parameter owns its hooks: one that held the parameter would keep it alive forever.
  const at::TensorImpl* const self = parameter.unsafeGetTensorImpl();
  const auto look = [held, self](const at::TensorBase&) {
    if (*held) *held = !is_clear(self->grad());
  };
  watched_.push_back({parameter, parameter.register_hook(look), held});
}

void Held::set(bool held) {
  for (const Watched& one : watched_) *one.held = held;
}

const void* Held::first() const {
  for (const Watched& one : watched_) {
    if (*one.held) *one.held = !is_clear(one.parameter.grad());
    if (*one.held) return one.parameter.unsafeGetTensorImpl();
  }
  return nullptr;
}

}  // namespace thinwire::ddp
