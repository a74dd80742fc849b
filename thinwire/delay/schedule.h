// schedule.h: when the rounds of a delayed average are closed and applied. Internal.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "thinwire/core/options.h"
#include "thinwire/core/state.h"
#include "thinwire/core/view.h"
#include "thinwire/delay/options.h"

namespace thinwire {

class Schedule {
 public:
  explicit Schedule(const DelayOptions& options) : options_(options), delay_(options.delay) {}

  // A round in flight: the step when it was closed, and its number of steps.
  struct Closed {
    std::uint64_t at = 0, steps = 0;
  };

  void begin_step() { ++step_; }
  // Whether the open round ends with this step.
  bool closes() const { return step_ - opened_ >= options_.local_steps; }
  void close();
  // Whether the oldest round must be applied in this step (or `ahead` steps later).
  bool is_due(std::uint64_t ahead = 0) const;
  Closed take();
  // Whether anchors are compared with the round that is closed now. Call it once per round.
  bool compares();

  std::uint64_t delay() const { return delay_; }
  void set_delay(std::uint64_t delay) { delay_ = delay; }
  std::uint64_t steps() const { return step_; }
  std::uint64_t in_flight() const { return closed_.size(); }

  void visit_state(StateVisitor& visitor);

 private:
  DelayOptions options_;
  std::uint64_t delay_, step_ = 0, opened_ = 0, closed_rounds_ = 0;
  std::deque<Closed> closed_;
};

// Shows a visitor a count.
void visit_count(StateVisitor& visitor, const std::string& name, std::uint64_t& value);

// Adds buckets for the moments after those of the weights, with their own names.
std::vector<Bucket> with_moments(std::vector<Bucket> buckets, bool moments);
// The options of the moments' ledgers. Moments cannot become unstable, so they use the plain ledger
// with every correction.
DelayOptions of_moments(DelayOptions options);

// All settings that must be the same on all ranks.
std::string description_of(const DelayOptions& options);

// Throws an Error when settings conflict, or weights are halves.
void check_delayed(const DelayOptions& options, const Config& config,
                   const std::vector<Bucket>& buckets, bool moments);

}  // namespace thinwire
