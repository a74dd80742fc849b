// buckets.h: the parameters of a model in flat buffers, divided into buckets in the order in which
// backward reaches them. The parameters' weights and gradients are views of the buffers, so
// exchange and optimizer work on the model itself, or on its mirror on the host. Virtual workers
// share the weights, but each has memory for its gradients.
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

// The trainable parameters. A parameter that layers share appears once.
std::vector<NamedParameter> trainable(const torch::nn::Module& model);

// Positions in `parameters`, in the order in which `backward` completes their gradients. Parameters
// that it does not reach come last.
std::vector<std::uint32_t> arrival_order(const std::vector<NamedParameter>& parameters,
                                         const std::function<void()>& backward);

class Buckets {
 public:
  // Takes the parameters in `order`. A bucket is full at `bytes`, the first one at a quarter of
  // that, so that the link has work early. The parameters must outlive the buckets.
  Buckets(const std::vector<NamedParameter>& parameters, std::span<const std::uint32_t> order,
          std::size_t bytes, Seat seat, std::size_t memories);
  ~Buckets();
  Buckets(const Buckets&) = delete;
  Buckets& operator=(const Buckets&) = delete;

  const std::vector<Bucket>& layout() const { return layout_; }
  TensorView weights(std::size_t bucket) { return mirror_->weights(bucket); }
  TensorView gradient(std::size_t bucket) { return mirror_->gradient(bucket); }

  // The memory that gradient() shows, and that the next backward fills; 0 at first.
  void choose_memory(std::size_t memory);
  void zero_gradients();

  // Copies the weights to the model, before it computes.
  void push_weights() { mirror_->push_weights(); }

  // During the next backward, `ready` is called for each bucket as soon as its last gradient is
  // complete. release() calls it for buckets that backward left incomplete (their parameters were
  // not used, so the gradient is zero). After that, all calls have been made.
  using Ready = Mirror::Ready;
  void watch(Ready ready);
  void release();

 private:
  class Hook;
  using Tensors = std::vector<torch::Tensor>;
  Tensors flat_memory() const;
  Tensors slices_of(const Tensors& flat) const;
  void arrived(std::size_t bucket);

  Tensors parameters_;
  std::vector<std::size_t> bucket_of_;  // by parameter
  std::vector<Bucket> layout_;
  Tensors weights_;                 // flat, by bucket, on the model's device
  std::vector<Tensors> gradients_;  // the same, by memory
  std::vector<Tensors> slices_;     // by memory: the gradient of each parameter
  std::unique_ptr<Mirror> mirror_;
  std::vector<std::size_t> missing_;  // missing gradients, by bucket
  Ready ready_;
};

}  // namespace thinwire::train
