// averaging.h: how the workers' progress becomes one model: gradients averaged in every step, or
// updates averaged late (thinwire/delay). The trainer sees no difference.
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
    bool skipped = false;  // a gradient was not finite: the weights are as before
    double exposed = 0;    // seconds of waiting for other workers
    double update = 0;     // seconds of the rest
  };

  virtual ~Averaging() = default;

  // A bucket's gradient is complete; backward goes on.
  virtual void submit(std::uint16_t bucket) = 0;
  // After backward: exchanges what is to be exchanged and changes the weights.
  virtual Result finish(float rate, const Learner::Phase& phase) = 0;
  // Waits until nothing is in flight: what follows is off the clock, and must not give messages
  // time that nobody counts.
  virtual void await_arrivals() {}
  // After the last step of the training: also takes everything in.
  virtual void complete() {}

  // The model that all workers have in common, to be hashed and saved.
  virtual std::span<float> model(std::size_t bucket) = 0;
  // While it lives, the learner's weights are that model, and the group is the caller's.
  class Showing {
   public:
    virtual ~Showing() = default;
  };
  virtual std::unique_ptr<Showing> show() = 0;
  // Whether workers meet between steps anyway. Else the trainer must not make them wait for each
  // other only to check or report.
  virtual bool in_step() const = 0;
  // The group, for the caller's own collectives; at the same step on all ranks.
  virtual std::unique_lock<std::mutex> hold() { return {}; }

  virtual Report report() const = 0;
  virtual void observe(Observer observer) = 0;
  virtual void visit_state(StateVisitor& visitor) = 0;
};

// The learner must outlive it. Collectives.
std::unique_ptr<Averaging> average_gradients(const Settings& settings, Group& group,
                                             Learner& learner);
// `rates`: the learning rate of any step, for the published correction.
using Rates = std::function<float(std::uint64_t step)>;
std::unique_ptr<Averaging> average_late(const Settings& settings, Group& group, Learner& learner,
                                        Rates rates);

// Shortens the gradient of all buckets together to `longest`.
void clip_gradient(Learner& learner, double longest);

}  // namespace thinwire::train
