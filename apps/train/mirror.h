// mirror.h: a bucket's host mirror: what the exchange and the optimizer see of weights and
// gradients. Where the model lives on the CPU that is its memory itself, and nothing is copied.
// Where it lives on a device, it is pinned memory: gradients come down beside backward, weights go
// up before forward.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn.h>
#include <torch/utils.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

namespace thinwire::train {

class Mirror {
 public:
  using Ready = std::function<void(std::uint16_t bucket)>;

  virtual ~Mirror() = default;

  virtual std::span<float> weights(std::size_t bucket) = 0;
  virtual std::span<float> gradient(std::size_t bucket) = 0;

  // The gradient is complete, or will be when the device comes to the end of the current stream.
  // Calls `ready` as soon as it is here, once, in the order of these calls; on a device from a
  // thread of the mirror's.
  virtual void fetch(std::uint16_t bucket, const Ready& ready) = 0;

  // Returns when all that was fetched is here and `ready` has been called for it; throws what it
  // threw.
  virtual void settle() = 0;

  // The device will compute with the weights as they are here now.
  virtual void push_weights() = 0;
};

// Of flat tensors, one per bucket, all on one device; the tensors must not be replaced afterwards.
std::unique_ptr<Mirror> make_mirror(std::vector<torch::Tensor> weights,
                                    std::vector<torch::Tensor> gradients);

}  // namespace thinwire::train
