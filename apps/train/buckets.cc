// buckets.cc: lays out flat buffers, and learns from autograd when part of them is complete.
// SPDX-License-Identifier: Apache-2.0
#include "apps/train/buckets.h"

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <set>

#include "thinwire/core/error.h"

namespace thinwire::train {
namespace {

using torch::autograd::PostAccumulateGradHook;
using torch::autograd::impl::set_post_acc_grad_hooks;

class Recorder final : public PostAccumulateGradHook {
 public:
  Recorder(std::vector<std::uint32_t>& order, std::uint32_t index) : order_(order), index_(index) {}
  void operator()(const torch::Tensor&) override { order_.push_back(index_); }

 private:
  std::vector<std::uint32_t>& order_;
  std::uint32_t index_;
};

std::size_t count_of(const torch::Tensor& tensor) {
  return static_cast<std::size_t>(tensor.numel());
}

}  // namespace

std::vector<NamedParameter> trainable(const torch::nn::Module& model) {
  std::vector<NamedParameter> result;
  std::set<const void*> seen;
  for (const auto& item : model.named_parameters()) {
    if (!item.value().requires_grad() || item.value().numel() == 0) continue;
    if (item.value().scalar_type() != torch::kFloat)
      fail("parameter '", item.key(), "': expected f32");
    if (seen.insert(item.value().unsafeGetTensorImpl()).second)
      result.push_back({item.key(), item.value()});
  }
  return result;
}

std::vector<std::uint32_t> arrival_order(const std::vector<NamedParameter>& parameters,
                                         const std::function<void()>& backward) {
  std::vector<std::uint32_t> order;
  for (std::uint32_t i = 0; i < parameters.size(); ++i) {
    set_post_acc_grad_hooks(parameters[i].tensor, std::make_unique<Recorder>(order, i));
  }
  backward();
  for (const NamedParameter& parameter : parameters) {
    set_post_acc_grad_hooks(parameter.tensor, nullptr);
    parameter.tensor.mutable_grad().reset();
  }
  for (std::uint32_t i = 0; i < parameters.size(); ++i) {
    if (std::find(order.begin(), order.end(), i) == order.end()) order.push_back(i);
  }
  return order;
}

class Buckets::Hook final : public PostAccumulateGradHook {
 public:
  Hook(Buckets& buckets, std::size_t bucket) : buckets_(buckets), bucket_(bucket) {}
  void operator()(const torch::Tensor&) override { buckets_.arrived(bucket_); }

 private:
  Buckets& buckets_;
  std::size_t bucket_;
};

Buckets::Buckets(const std::vector<NamedParameter>& parameters,
                 std::span<const std::uint32_t> order, std::size_t bytes, Seat seat,
                 std::size_t memories) {
  for (const std::uint32_t index : order) {
    const NamedParameter& parameter = parameters[index];
    const std::size_t full = (layout_.size() == 1 ? bytes / 4 : bytes) / sizeof(float);
    if (layout_.empty() || layout_.back().elements() >= full) {
      if (layout_.size() > 65535) fail("more than 65536 buckets; give a larger --bucket-mb");
      layout_.push_back({static_cast<std::uint16_t>(layout_.size()), {}});
    }
    Bucket& bucket = layout_.back();
    const auto sizes = parameter.tensor.sizes();
    bucket.parameters.push_back({parameter.name,
                                 bucket.elements(),
                                 count_of(parameter.tensor),
                                 {sizes.begin(), sizes.end()}});
    parameters_.push_back(parameter.tensor);
    bucket_of_.push_back(layout_.size() - 1);
  }
  for (const Bucket& bucket : layout_) missing_.push_back(bucket.parameters.size());
  weights_ = flat_memory();
  const Tensors weights = slices_of(weights_);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const torch::NoGradGuard no_grad;
    weights[i].copy_(parameters_[i]);
    parameters_[i].set_data(weights[i]);
    set_post_acc_grad_hooks(parameters_[i], std::make_unique<Hook>(*this, bucket_of_[i]));
  }
  for (std::size_t memory = 0; memory < memories; ++memory) {
    gradients_.push_back(flat_memory());
    slices_.push_back(slices_of(gradients_.back()));
  }
  mirror_ = make_mirror(weights_, gradients_, seat);
  choose_memory(0);
}

Buckets::~Buckets() {
  for (const torch::Tensor& parameter : parameters_) set_post_acc_grad_hooks(parameter, nullptr);
}

Buckets::Tensors Buckets::flat_memory() const {
  Tensors flat;
  for (const Bucket& bucket : layout_) {
    const auto elements = static_cast<std::int64_t>(bucket.elements());
    flat.push_back(torch::zeros({elements}, parameters_.front().options().requires_grad(false)));
  }
  return flat;
}

Buckets::Tensors Buckets::slices_of(const Tensors& flat) const {
  Tensors slices;
  std::vector<std::int64_t> next(layout_.size(), 0);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const std::int64_t count = parameters_[i].numel();
    std::int64_t& offset = next[bucket_of_[i]];
    slices.push_back(flat[bucket_of_[i]].narrow(0, offset, count).view(parameters_[i].sizes()));
    offset += count;
  }
  return slices;
}

void Buckets::choose_memory(std::size_t memory) {
  mirror_->choose(memory);
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    parameters_[i].mutable_grad() = slices_[memory][i];
}

void Buckets::zero_gradients() {
  for (torch::Tensor& gradient : gradients_[mirror_->memory()]) gradient.zero_();
}

void Buckets::watch(Ready ready) {
  for (std::size_t i = 0; i < layout_.size(); ++i) missing_[i] = layout_[i].parameters.size();
  ready_ = std::move(ready);
}

void Buckets::release() {
  const Ready ready = std::exchange(ready_, nullptr);
  for (const Bucket& bucket : layout_) {
    if (missing_[bucket.id] > 0) mirror_->fetch(bucket.id, ready);
  }
  mirror_->settle();
}

void Buckets::arrived(std::size_t bucket) {
  if (!ready_) return;  // gradients are only being accumulated
  if (--missing_[bucket] == 0) mirror_->fetch(static_cast<std::uint16_t>(bucket), ready_);
}

}  // namespace thinwire::train
