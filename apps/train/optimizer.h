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
#include "thinwire/core/state.h"
#include "thinwire/core/view.h"
#include "thinwire/kernels/sgd.h"

namespace thinwire::train {

class Optimizer {
 public:
  Optimizer(const Settings& settings, const std::vector<Bucket>& buckets);

  void step(const Bucket& bucket, float rate, std::span<const float> average,
            std::span<float> weights);
  void visit_state(StateVisitor& visitor, const std::vector<Bucket>& buckets);

  bool adam() const { return adam_.has_value(); }
  std::span<float> second_moment(std::size_t bucket) { return moments_[bucket].second; }

 private:
  // Adam's memory of a bucket. Skipped steps are not updates, so updates are counted here.
  struct Moments {
    std::vector<float> first, second;
    std::uint64_t updates = 0;
  };

  void visit_moments(StateVisitor& visitor, const Bucket& bucket);

  SgdRule rule_;
  bool inside_ = false;                     // the scheme accumulates momentum itself
  std::vector<std::vector<float>> memory_;  // by bucket; empty if there is nothing to keep
  std::optional<AdamRule> adam_;            // replaces all of the above
  std::vector<Moments> moments_;            // by bucket
};

}  // namespace thinwire::train
