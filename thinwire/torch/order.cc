// order.cc: copies between a strided view and a flat array.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/torch/order.h"

#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>

namespace thinwire::ddp {
namespace {

bool is_by_element(const std::string& kind) { return kind == "u" || kind == "v" || kind == "m"; }

void copy_back(const at::Tensor& from, std::vector<float>& values) {
  const auto* const data = from.const_data_ptr<float>();
  std::copy(data, data + values.size(), values.begin());
}

}  // namespace

void Orders::note(const std::string& name, const c10::TensorImpl& parameter) {
  shapes_.erase(name);
  // DDP lays out the others by index.
  if (parameter.is_contiguous() || !parameter.is_non_overlapping_and_dense()) return;
  const auto sizes = parameter.sizes(), strides = parameter.strides();
  shapes_[name] = {{sizes.begin(), sizes.end()},
                   {strides.begin(), strides.end()},
                   static_cast<std::size_t>(parameter.numel())};
}

template <typename Change>
void Orders::visit(State& state, const Change& change) const {
  if (shapes_.empty()) return;
  for (auto& [name, entry] : state) {
    const std::size_t slash = name.rfind('/');
    if (slash == name.npos || !is_by_element(name.substr(slash + 1))) continue;
    const auto found = shapes_.find(name.substr(0, slash));
    if (found != shapes_.end() && found->second.count == entry.values.size())
      change(found->second, entry.values);
  }
}

void Orders::by_index(State& state) const {
  visit(state, [](const Shape& shape, std::vector<float>& values) {
    const at::Tensor memory = at::from_blob(values.data(), shape.sizes, shape.strides, at::kFloat);
    copy_back(memory.contiguous(), values);
  });
}

void Orders::by_memory(State& state) const {
  visit(state, [](const Shape& shape, std::vector<float>& values) {
    const at::Tensor memory = at::empty_strided(shape.sizes, shape.strides, at::kFloat);
    memory.copy_(at::from_blob(values.data(), shape.sizes, at::kFloat));
    copy_back(memory, values);
  });
}

}  // namespace thinwire::ddp
