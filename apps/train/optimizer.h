// optimizer.h: SGD or Adam on flat buffers, bucket by bucket.
//
// For most schemes SGD is torch.optim.SGD on the averaged gradient g:
//
//     d = g + decay*w    v = momentum*v + d    w -= rate * (nesterov ? d + momentum*v : v)
//
// A scheme that accumulates momentum itself (dgc) leaves only the step and the weight decay, which
// has its own momentum: thinwire/kernels/sgd.h. Adam (optimizer_adam.h) does not work with these
// schemes: check() in settings.h rejects it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "apps/train/optimizer_adam.h"
#include "apps/train/settings.h"
#include "thinwire/core/buffer.h"
#include "thinwire/core/state.h"
#include "thinwire/core/view.h"
#include "thinwire/kernels/sgd.h"

namespace thinwire::train {

class Optimizer {
 public:
  // Its memory is on the device of the weights.
  Optimizer(const Settings& settings, const std::vector<Bucket>& buckets, Device device = {});

  // Weights on the host.
  void step(const Bucket& bucket, float rate, std::span<const float> average,
            std::span<float> weights);
  // Weights on the device: torch operations in the current stream, with the same bits.
  void enqueue_step(const Bucket& bucket, float rate, const TensorView& average,
                    const TensorView& weights);
  void visit_state(StateVisitor& visitor, const std::vector<Bucket>& buckets);

  bool adam() const { return adam_.has_value(); }
  std::span<float> second_moment(std::size_t bucket) { return second_moment_view(bucket).f32(); }
  TensorView second_moment_view(std::size_t bucket) const { return view(memory_[bucket].second); }

 private:
  // What is kept of a bucket. SGD needs at most one buffer. Skipped steps are not updates, so Adam
  // counts its updates here.
  struct Memory {
    Buffer first, second;
    std::uint64_t updates = 0;
  };

  TensorView view(const Buffer& buffer) const {
    return {buffer.data(), buffer.size() / sizeof(float), DType::f32, device_};
  }
  void visit_moments(StateVisitor& visitor, const Bucket& bucket);

  Device device_;
  SgdRule rule_;
  bool inside_ = false;           // the scheme accumulates momentum itself
  std::optional<AdamRule> adam_;  // replaces both
  std::vector<Memory> memory_;    // by bucket; empty buffers if there is nothing to keep
};

}  // namespace thinwire::train
