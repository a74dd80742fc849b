// schedule.cc: counts of steps and rounds, and what all delayed averages check.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/delay/schedule.h"

#include <algorithm>
#include <string>
#include <utility>

#include "thinwire/core/error.h"
#include "thinwire/delay/fit.h"

namespace thinwire {

void Schedule::close() {
  closed_.push_back({step_, step_ - opened_});
  opened_ = step_;
}

bool Schedule::is_due(std::uint64_t ahead) const {
  return !closed_.empty() && step_ + ahead >= closed_.front().at + delay_;
}

Schedule::Closed Schedule::take() {
  const Closed closed = closed_.front();
  closed_.pop_front();
  return closed;
}

bool Schedule::compares() {
  const std::uint64_t rounds =
      std::max<std::uint64_t>(1, options_.check_every / options_.local_steps);
  return options_.check_every != 0 && closed_rounds_++ % rounds == 0;
}

void Schedule::visit_state(StateVisitor& visitor) {
  visit_count(visitor, "delay/delay", delay_);
  visit_count(visitor, "delay/step", step_);
  visit_count(visitor, "delay/opened", opened_);
  visit_count(visitor, "delay/closed_rounds", closed_rounds_);
  std::uint64_t rounds = closed_.size();
  visit_count(visitor, "delay/in_flight", rounds);
  closed_.resize(rounds);
  for (std::size_t r = 0; r < closed_.size(); ++r) {
    visit_count(visitor, "delay/closed" + std::to_string(r), closed_[r].at);
    visit_count(visitor, "delay/steps" + std::to_string(r), closed_[r].steps);
  }
}

void visit_count(StateVisitor& visitor, const std::string& name, std::uint64_t& value) {
  auto real = static_cast<double>(value);
  visitor.number(name, real, Share::replicated);
  value = static_cast<std::uint64_t>(real);
}

std::vector<Bucket> with_moments(std::vector<Bucket> buckets, bool moments) {
  if (!moments) return buckets;
  const std::size_t count = buckets.size();
  for (std::size_t i = 0; i < count; ++i) {
    Bucket bucket = buckets[i];
    bucket.id = static_cast<std::uint16_t>(count + i);
    for (Parameter& parameter : bucket.parameters) parameter.name += "/moment";
    buckets.push_back(std::move(bucket));
  }
  return buckets;
}

DelayOptions of_moments(DelayOptions options) {
  if (options.correction != Correction::none) options.correction = Correction::ledger;
  options.share = options.pace = options.clip = options.rate = 0;
  return options;
}

std::string description_of(const DelayOptions& options) {
  return "delay " + options.delay_str() + ", " + std::to_string(options.local_steps) +
         " local steps, correction " + options.correction_str() + ", momentum " +
         std::to_string(options.momentum) + ", anchors compared every " +
         std::to_string(options.check_every) + " steps";
}

void check_delayed(const DelayOptions& options, const Config& config,
                   const std::vector<Bucket>& buckets, bool moments) {
  options.check();
  check_scheme(options, config, moments);
  for (const Bucket& bucket : buckets)
    if (bucket.dtype != DType::f32)
      fail("delay: bucket ", bucket.id, " is of ", name_of(bucket.dtype), "; updates are ",
           "differences of weights, too small for it: keep the weights in f32");
}

}  // namespace thinwire
