// mirror.h: the weights and gradients as exchange and optimizer see them. If these work where the
// model lives, they see the model's own memory, and nothing is copied. If they work on the host and
// the model lives on a device, they see pinned memory: gradients are copied to the host during
// backward, weights to the device before forward. Virtual workers share the weights, but each has
// memory for its gradients.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn.h>
#include <torch/utils.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "apps/train/device.h"
#include "thinwire/core/view.h"

namespace thinwire::train {

class Mirror {
 public:
  using Ready = std::function<void(std::uint16_t bucket)>;

  virtual ~Mirror() = default;

  virtual TensorView weights(std::size_t bucket) = 0;
  TensorView gradient(std::size_t bucket) { return gradient_of(memory_, bucket); }

  // The memory of gradients that the other calls are about; 0 at first. Call it before the first
  // fetch(), or after settle().
  void choose(std::size_t memory) { memory_ = memory; }
  std::size_t memory() const { return memory_; }

  // The gradient is complete, or will be once the device has finished the current stream's work.
  // Calls `ready` once, in the order of these calls: at once, or as soon as a copy is on the host;
  // then a thread of the mirror calls it.
  virtual void fetch(std::uint16_t bucket, const Ready& ready) = 0;

  // Returns when all copies are on the host and `ready` has been called for all gradients.
  // Rethrows what `ready` threw.
  virtual void settle() = 0;

  // From now on the device computes with the current weights.
  virtual void push_weights() = 0;

 private:
  virtual TensorView gradient_of(std::size_t memory, std::size_t bucket) = 0;

  std::size_t memory_ = 0;
};

// A mirror of flat tensors, one per bucket, all on one device; gradients[m] are those of memory m.
// Do not replace the tensors afterwards.
std::unique_ptr<Mirror> make_mirror(std::vector<torch::Tensor> weights,
                                    std::vector<std::vector<torch::Tensor>> gradients, Seat seat);

}  // namespace thinwire::train
