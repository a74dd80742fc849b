// buckets.h: the parameters of a model in flat buffers, cut into buckets in the order in which
// backward reaches them. Weights and gradients of the parameters are views of the buffers: what an
// exchange averages and an optimizer changes is the model itself, or, where that lives on a GPU,
// its mirror on the host.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn.h>
#include <torch/utils.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "apps/train/mirror.h"
#include "thinwire/core/view.h"

namespace thinwire::train {

struct NamedParameter {
  std::string name;
  torch::Tensor tensor;
};

// The trainable parameters, each once even where layers share it.
std::vector<NamedParameter> trainable(const torch::nn::Module& model);

// Positions in `parameters` in the order in which `backward` completes their gradients; those that
// it does not reach come last.
std::vector<std::uint32_t> arrival_order(const std::vector<NamedParameter>& parameters,
                                         const std::function<void()>& backward);

class Buckets {
 public:
  // Takes the parameters in `order`; a bucket is full at `bytes`, the first already at a quarter of
  // it, so that the link has work early. The parameters must outlive the buckets.
  Buckets(const std::vector<NamedParameter>& parameters, std::span<const std::uint32_t> order,
          std::size_t bytes);
  ~Buckets();
  Buckets(const Buckets&) = delete;
  Buckets& operator=(const Buckets&) = delete;

  const std::vector<Bucket>& layout() const { return layout_; }
  std::span<float> weights(std::size_t bucket);
  std::span<float> gradient(std::size_t bucket);

  void zero_gradients();

  // Before the model computes: gives it the weights.
  void push_weights() { mirror_->push_weights(); }

  // During the next backward, `ready` is called for each bucket as soon as its last gradient is
  // there. release() calls it for those that backward left incomplete (their parameters were not
  // used; the gradient is zero), and ends this: all calls have been made.
  using Ready = Mirror::Ready;
  void watch(Ready ready);
  void release();

 private:
  class Hook;
  void place(const torch::Tensor& parameter, std::size_t bucket, std::int64_t offset);
  void arrived(std::size_t bucket);

  std::vector<torch::Tensor> parameters_;
  std::vector<Bucket> layout_;
  std::vector<torch::Tensor> weights_, gradients_;  // flat, by bucket, where the model lives
  std::unique_ptr<Mirror> mirror_;
  std::vector<std::size_t> missing_;  // gradients still to come, by bucket
  Ready ready_;
};

}  // namespace thinwire::train
