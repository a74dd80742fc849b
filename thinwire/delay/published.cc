// published.cc: the gradient formula of the paper.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/delay/published.h"

#include <algorithm>
#include <utility>

#include "thinwire/core/error.h"

namespace thinwire {

Published::Published(Bucket bucket, std::span<float> weights)
    : bucket_(std::move(bucket)),
      weights_(weights),
      anchor_(weights.begin(), weights.end()),
      open_(weights.size()) {
  if (bucket_.elements() != weights.size())
    fail("delay: expected ", bucket_.elements(), " weights, got ", weights.size());
}

void Published::add(std::span<const float> gradient) {
  for (std::size_t i = 0; i < open_.size(); ++i) open_[i] += gradient[i];
}

void Published::close(std::span<float> message) {
  std::ranges::copy(open_, message.begin());
  kept_.push_back(std::exchange(open_, std::vector<float>(open_.size())));
}

void Published::acknowledge(std::span<const float> mean, std::span<float> gradient) {
  if (kept_.empty()) fail("delay: an acknowledgement came, but no round is in flight");
  const std::vector<float>& own = kept_.front();
  for (std::size_t i = 0; i < own.size(); ++i) gradient[i] += mean[i] - own[i];
  kept_.pop_front();
}

void Published::come_home() { std::ranges::copy(anchor_, weights_.begin()); }

void Published::visit_state(StateVisitor& visitor) {
  visit_by_parameter(visitor, bucket_, "weights", anchor_, Share::replicated);
  visit_by_parameter(visitor, bucket_, "own", weights_, Share::local);
  visit_by_parameter(visitor, bucket_, "open", open_, Share::local);
  auto rounds = static_cast<double>(kept_.size());
  visitor.number("delay/" + std::to_string(bucket_.id) + "/rounds", rounds, Share::local);
  kept_.resize(static_cast<std::size_t>(rounds), std::vector<float>(open_.size()));
  for (std::size_t r = 0; r < kept_.size(); ++r)
    visit_by_parameter(visitor, bucket_, "kept" + std::to_string(r), kept_[r], Share::local);
}

}  // namespace thinwire
