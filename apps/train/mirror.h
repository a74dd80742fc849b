// mirror.h: a bucket's host mirror: the weights and gradients as exchange and optimizer see them.
// If the model lives on the CPU, the mirror is the model's own memory, and nothing is copied. If it
// lives on a device, the mirror is pinned memory: gradients are copied to the host during backward,
// weights to the device before forward.
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

  // The gradient is complete, or will be once the device has finished the current stream's work.
  // Calls `ready` once, as soon as the gradient is on the host, in the order of these calls. With a
  // device, a thread of the mirror calls it.
  virtual void fetch(std::uint16_t bucket, const Ready& ready) = 0;

  // Returns when all fetched gradients are on the host and `ready` has been called for them.
  // Rethrows what `ready` threw.
  virtual void settle() = 0;

  // From now on the device computes with the current weights.
  virtual void push_weights() = 0;
};

// A mirror of flat tensors, one per bucket, all on one device. Do not replace the
// tensors afterwards.
std::unique_ptr<Mirror> make_mirror(std::vector<torch::Tensor> weights,
                                    std::vector<torch::Tensor> gradients);

}  // namespace thinwire::train
