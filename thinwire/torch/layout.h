// layout.h: which parameters lie in which bucket. DDP cuts its buckets anew after the first step,
// and a restarted run begins with the first cut again, while a scheme's memory belongs to the cut
// it was made in. So we keep our own cut, and copy gradients between the two where DDP's differs.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "thinwire/core/view.h"

namespace thinwire::ddp {

using Names = std::vector<std::vector<std::string>>;  // of the parameters, bucket by bucket
// The parameters themselves, bucket by bucket.
using Cut = std::vector<std::vector<std::pair<std::string, at::Tensor>>>;

// Our name for a type of gradients; nothing for a type that they may not have.
std::optional<DType> gradient_type(at::ScalarType type);

// As buckets of f32.
std::vector<Bucket> buckets_of(const Cut& cut);
Names names_of(const std::vector<Bucket>& buckets);

// The same parameters in the cut that `names` says. Empty when these are not the same parameters,
// or a bucket would have two types of gradients.
std::vector<Bucket> arranged(const std::vector<Bucket>& buckets, const Names& names);

// A parameter's part of a flat bucket; and a tensor over values of the host, which must outlive it.
at::Tensor slice_of(const at::Tensor& bucket, const Parameter& parameter);
at::Tensor tensor_over(const std::vector<float>& values);

// Gradients of one cut, copied into flat tensors of another and back.
class Staging {
 public:
  Staging(const std::vector<Bucket>& to, c10::Device device);

  const std::vector<at::Tensor>& tensors() const { return tensors_; }
  void take(const std::vector<Bucket>& from, const std::vector<at::Tensor>& gradients);
  void give_back(const std::vector<Bucket>& to, const std::vector<at::Tensor>& gradients) const;

 private:
  std::vector<at::Tensor> tensors_;
  std::map<std::string, at::Tensor> places_;  // in them, by parameter
};

}  // namespace thinwire::ddp
