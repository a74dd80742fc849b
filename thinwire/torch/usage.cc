// usage.cc: counts out of DDP's reducer, and slices of buckets.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/torch/usage.h"

#include <algorithm>
#include <utility>

#include "thinwire/torch/layout.h"

namespace thinwire::ddp {
namespace {

// DDP's counts are protected members, so this class derives from the reducer.
struct Heir : c10d::Reducer {
  static bool looks(const c10d::Reducer& reducer) {
    return reducer.*(&Heir::find_unused_parameters_);
  }
  static bool is_static(const c10d::Reducer& reducer) { return reducer.*(&Heir::static_graph_); }
  static const std::vector<at::Tensor>& parameters(const c10d::Reducer& reducer) {
    return reducer.*(&Heir::params_);
  }
  static const at::Tensor& counts(const c10d::Reducer& reducer) {
    return reducer.*(&Heir::local_used_map_);
  }
};

}  // namespace

const std::vector<at::Tensor>& averaged_parameters(const c10d::Reducer& reducer) {
  return Heir::parameters(reducer);
}

std::optional<Usage> usage_of(const c10d::Reducer& reducer) {
  const bool fixed = Heir::is_static(reducer);
  if (!fixed && !Heir::looks(reducer)) return std::nullopt;
  return Usage{Heir::parameters(reducer), Heir::counts(reducer), fixed};
}

// On the host, as floats.
at::Tensor Unused::part_of(const at::Tensor& gradient, const Part& part) {
  return gradient
      .narrow(0, static_cast<std::int64_t>(part.offset), static_cast<std::int64_t>(part.count))
      .to(at::kCPU, at::kFloat);
}

void Unused::look(const Usage& usage, const std::vector<const void*>& parameters,
                  const at::Tensor& gradient) {
  if (index_.empty())
    for (const at::Tensor& parameter : usage.parameters)
      index_.emplace(parameter.unsafeGetTensorImpl(), index_.size());
  const auto* const counts = usage.counts.const_data_ptr<int>();
  std::size_t offset = 0;
  for (const void* parameter : parameters) {
    const auto* const tensor = static_cast<const at::TensorImpl*>(parameter);
    const auto count = static_cast<std::size_t>(tensor->numel());
    const auto found = index_.find(parameter);
    if (found != index_.end() && counts[found->second] == 0) {
      Part part{bucket_, offset, count, place_, found->second, {}};
      const at::Tensor slice = part_of(gradient, part);
      const auto* const first = slice.const_data_ptr<float>();
      if (std::any_of(first, first + count, [](float value) { return value != 0; }))
        part.before.assign(first, first + count);
      parts_.push_back(std::move(part));
    }
    offset += count;
    ++place_;
  }
  ++bucket_;
}

// On the device, because NCCL reaches only device memory.
void Unused::ask(const Usage& usage, c10d::ProcessGroup* group, c10::Device device) {
  if (fixed_) return;
  fixed_ = usage.fixed;
  counts_ = usage.counts.to(device, usage.counts.scalar_type(), false, /*copy=*/true);
  if (group == nullptr) return;
  std::vector<at::Tensor> tensors = {counts_};
  work_ = group->allreduce(tensors);
}

std::map<std::size_t, std::vector<float>> Unused::take(const std::vector<at::Tensor>& gradients) {
  std::map<std::size_t, std::vector<float>> taken;
  if (work_) work_->wait();
  if (parts_.empty()) return taken;
  counts_ = counts_.cpu();
  for (const Part& part : parts_) {
    if (counts_.const_data_ptr<int>()[part.index] != 0) continue;
    at::Tensor slice = gradients[part.bucket].narrow(0, static_cast<std::int64_t>(part.offset),
                                                     static_cast<std::int64_t>(part.count));
    const at::Tensor values = slice.to(at::kCPU, at::kFloat);
    const auto* const first = values.const_data_ptr<float>();
    std::vector<float>& back = taken[part.place];
    back.assign(first, first + part.count);
    for (std::size_t i = 0; i < part.before.size(); ++i) back[i] -= part.before[i];
    if (part.before.empty())
      slice.zero_();
    else
      slice.copy_(tensor_over(part.before));
  }
  return taken;
}

void Unused::clear() {
  bucket_ = place_ = 0;
  parts_.clear();
  work_.reset();
}

void Return::tensor(const std::string& name, std::span<float> values, Share share) {
  constexpr std::string_view residual = "/v";
  if (share != Share::summed || !name.ends_with(residual)) return;
  const auto found = values_.find(name.substr(0, name.size() - residual.size()));
  if (found == values_.end() || found->second.size() != values.size()) return;
  for (std::size_t i = 0; i < values.size(); ++i) values[i] += found->second[i];
  taken_.insert(found->first);
}

}  // namespace thinwire::ddp
