// averaging.h: how the workers' progress becomes one model: gradients averaged in every step, or
// delayed averages of updates (thinwire/delay). The trainer sees no difference.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>

#include "apps/train/learner.h"
#include "apps/train/settings.h"
#include "thinwire/comm/group.h"
#include "thinwire/core/state.h"
#include "thinwire/exchange/exchange.h"

namespace thinwire::train {

class Averaging {
 public:
  struct Result {
    bool skipped = false;  // a gradient was not finite; the weights are unchanged
    double exposed = 0;    // seconds spent waiting for other workers
    double update = 0;     // seconds of everything else
  };

  virtual ~Averaging() = default;

  // A bucket's gradient is complete; backward continues.
  virtual void submit(std::uint16_t bucket) = 0;
  // After backward: runs the exchange and updates the weights.
  virtual Result finish(float rate, const Learner::Phase& phase) = 0;
  // Waits until nothing is in flight. What follows is not timed, and must not give messages time
  // that nobody counts.
  virtual void await_arrivals() {}
  // After the last step of the training: also takes in everything that has arrived.
  virtual void complete() {}

  // The model that all workers share, for hashing and saving.
  virtual std::span<float> model(std::size_t bucket) = 0;
  // While it lives, the learner's weights are that model, and the caller may use the group.
  class Showing {
   public:
    virtual ~Showing() = default;
  };
  virtual std::unique_ptr<Showing> show() = 0;
  // Whether workers synchronize between steps anyway. If not, the trainer must not make them wait
  // for each other only to check or report.
  virtual bool in_step() const = 0;
  // Locks the group for the caller's own collectives. Call it at the same step on all ranks.
  virtual std::unique_lock<std::mutex> hold() { return {}; }

  virtual Report report() const = 0;
  virtual void observe(Observer observer) = 0;
  virtual void visit_state(StateVisitor& visitor) = 0;
};

// The learner must outlive the result. Both functions are collectives.
std::unique_ptr<Averaging> average_gradients(const Settings& settings, Group& group,
                                             Learner& learner);
// The learning rate of any step, which the published correction needs.
using Rates = std::function<float(std::uint64_t step)>;
std::unique_ptr<Averaging> average_late(const Settings& settings, Group& group, Learner& learner,
                                        Rates rates);

// Clips the gradient of all buckets together to the norm `longest`.
void clip_gradient(Learner& learner, double longest);

}  // namespace thinwire::train
