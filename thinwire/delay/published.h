// published.h: Delayed Gradient Averaging as Zhu et al. 2021 write it, for one array of gradients:
// at iteration i the optimizer gets g(i) - g(i-D) + mean(i-D), where mean is over the workers; with
// K local steps per message, the sums over the K steps.
//
// The anchor replays the optimizer on the means, with the learning rates of the steps they belong
// to. With K = 1 it is the mean of the workers' models; with K > 1 and momentum it is close to it,
// since of the K gradients only the sum is known.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <deque>
#include <span>
#include <string>
#include <vector>

#include "thinwire/core/state.h"
#include "thinwire/core/view.h"

namespace thinwire {

class Published {
 public:
  Published(Bucket bucket, std::span<float> weights);

  // Takes note of a step's gradient.
  void add(std::span<const float> gradient);
  // Ends the open round: `message` becomes the sum of its gradients.
  void close(std::span<float> message);
  // The oldest closed round has come back: adds mean - own to the gradient of this step.
  void acknowledge(std::span<const float> mean, std::span<float> gradient);
  // The weights become the anchor.
  void come_home();

  std::span<float> anchor() { return anchor_; }
  std::size_t in_flight() const { return kept_.size(); }

  void visit_state(StateVisitor& visitor);

 private:
  Bucket bucket_;
  std::span<float> weights_;
  std::vector<float> anchor_, open_;
  std::deque<std::vector<float>> kept_;  // own sums, by round in flight
};

}  // namespace thinwire
