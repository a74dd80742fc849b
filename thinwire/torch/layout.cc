// layout.cc: cuts by name, and copies between them.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/torch/layout.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <cstdint>

#include "thinwire/comm/c10d/device_stream.h"

namespace thinwire::ddp {

std::optional<DType> gradient_type(at::ScalarType type) {
  for (const DType one : {DType::f32, DType::f16, DType::bf16})
    if (torch_engine::scalar_of(one) == type) return one;
  return std::nullopt;
}

std::vector<Bucket> buckets_of(const Cut& cut) {
  std::vector<Bucket> buckets;
  for (const auto& parameters : cut) {
    Bucket bucket{static_cast<std::uint16_t>(buckets.size()), {}};
    for (const auto& [name, tensor] : parameters) {
      const auto count = static_cast<std::size_t>(tensor.numel());
      const auto sizes = tensor.sizes();
      bucket.parameters.push_back({name, bucket.elements(), count, {sizes.begin(), sizes.end()}});
    }
    buckets.push_back(std::move(bucket));
  }
  return buckets;
}

Names names_of(const std::vector<Bucket>& buckets) {
  Names names;
  for (const Bucket& bucket : buckets) {
    names.emplace_back();
    for (const Parameter& parameter : bucket.parameters) names.back().push_back(parameter.name);
  }
  return names;
}

std::vector<Bucket> arranged(const std::vector<Bucket>& buckets, const Names& names) {
  std::map<std::string, std::pair<Parameter, DType>> known;
  for (const Bucket& bucket : buckets)
    for (const Parameter& parameter : bucket.parameters)
      known[parameter.name] = {parameter, bucket.dtype};
  std::vector<Bucket> result;
  for (const auto& group : names) {
    result.push_back({static_cast<std::uint16_t>(result.size()), {}});
    for (const std::string& name : group) {
      const auto found = known.find(name);
      if (found == known.end()) return {};
      auto& [parameter, type] = found->second;
      Bucket& bucket = result.back();
      if (!bucket.parameters.empty() && bucket.dtype != type) return {};
      bucket.dtype = type;
      parameter.offset = bucket.elements();
      bucket.parameters.push_back(std::move(parameter));
      known.erase(found);
    }
  }
  return known.empty() ? result : std::vector<Bucket>{};
}

at::Tensor slice_of(const at::Tensor& bucket, const Parameter& parameter) {
  return bucket.narrow(0, static_cast<std::int64_t>(parameter.offset),
                       static_cast<std::int64_t>(parameter.count));
}

at::Tensor tensor_over(const std::vector<float>& values) {
  auto* const data = const_cast<float*>(values.data());
  return at::from_blob(data, {static_cast<std::int64_t>(values.size())}, at::kFloat);
}

Staging::Staging(const std::vector<Bucket>& to, c10::Device device) {
  for (const Bucket& bucket : to) {
    const auto options =
        at::TensorOptions().dtype(torch_engine::scalar_of(bucket.dtype)).device(device);
    tensors_.push_back(at::empty({static_cast<std::int64_t>(bucket.elements())}, options));
    for (const Parameter& parameter : bucket.parameters)
      places_[parameter.name] = slice_of(tensors_.back(), parameter);
  }
}

void Staging::take(const std::vector<Bucket>& from, const std::vector<at::Tensor>& gradients) {
  for (std::size_t i = 0; i < from.size(); ++i)
    for (const Parameter& parameter : from[i].parameters)
      places_.at(parameter.name).copy_(slice_of(gradients[i], parameter));
}

void Staging::give_back(const std::vector<Bucket>& to,
                        const std::vector<at::Tensor>& gradients) const {
  for (std::size_t i = 0; i < to.size(); ++i)
    for (const Parameter& parameter : to[i].parameters)
      slice_of(gradients[i], parameter).copy_(places_.at(parameter.name));
}

}  // namespace thinwire::ddp
