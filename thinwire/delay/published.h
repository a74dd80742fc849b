// published.h: Delayed Gradient Averaging as published by Zhu et al. 2021, for one array of
// gradients. At iteration i the optimizer gets g(i) - g(i-D) + mean(i-D), where mean is over the
// workers. With K local steps per message these are sums over K steps.
//
// The anchor replays the optimizer on the means, with the learning rates of the steps they belong
// to. With K = 1 it is the mean of the workers' models. With K > 1 and momentum it is close to it,
// because only the sum of the K gradients is known.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <deque>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "thinwire/core/state.h"
#include "thinwire/core/view.h"
#include "thinwire/delay/delayed.h"

namespace thinwire {

class Published {
 public:
  Published(Bucket bucket, std::span<float> weights);

  // Records the gradient of a step.
  void add(std::span<const float> gradient);
  // Ends the open round: `message` becomes the sum of its gradients.
  void close(std::span<float> message);
  // Acknowledges the oldest closed round: adds mean - own to the gradient of this step.
  void acknowledge(std::span<const float> mean, std::span<float> gradient);
  // Sets the weights to the anchor.
  void come_home();

  std::span<float> anchor() { return anchor_; }
  std::size_t in_flight() const { return kept_.size(); }

  void visit_state(StateVisitor& visitor);

 private:
  Bucket bucket_;
  std::span<float> weights_;
  std::vector<float> anchor_, open_;
  std::deque<std::vector<float>> kept_;  // own sums of the rounds in flight
};

// A DelayedAverage that also has the published correction, which needs the optimizer.
class PublishedAverage final : public DelayedAverage {
 public:
  // Applies the optimizer's step `step` to another array than the weights.
  using Replay = DelayedAverage::Replay;

  PublishedAverage(Group& group, const std::vector<Bucket>& buckets, const Arrays& weights,
                   const Config& config, const DelayOptions& options, const Arrays& moments,
                   Replay replay)
      : DelayedAverage(group, buckets, weights, config, options, moments, std::move(replay)) {}

  // With Correction::published, before the optimizer's step: records the gradients, and adds the
  // due correction to them. Pass zeros for a skipped step.
  using DelayedAverage::correct;
};

}  // namespace thinwire
