// averaging.h: how the workers' progress becomes one model: gradients averaged in every step, or
// delayed averages of updates (thinwire/delay). The trainer sees no difference. Of virtual workers,
// submit(), report() and visit_state() are about the one whose turn it is (learner.h).
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
#include "thinwire/comm/stream_group.h"
#include "thinwire/core/state.h"
#include "thinwire/exchange/exchange.h"

namespace thinwire::train {

class Averaging {
 public:
  struct Result {
    bool skipped = false;  // a gradient was not finite; the weights are unchanged
    double exposed = 0;    // seconds spent waiting for other workers
    double update = 0;     // seconds of everything else
    double link = 0;       // virtual workers: seconds that the messages would take over --link
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

  // The model that all workers share, for hashing. Valid until the next call for this bucket.
  virtual std::span<const float> model(std::size_t bucket) = 0;
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

  virtual Report report() = 0;
  // Whether the report has times of encoding, waiting and decoding, and observe() any stages. In
  // streams of a GPU nobody takes them.
  virtual bool timed() const { return true; }
  virtual void observe(Observer observer) = 0;
  virtual void visit_state(StateVisitor& visitor) = 0;
};

// The learner must outlive the result. These functions are collectives.
std::unique_ptr<Averaging> average_gradients(const Settings& settings, Group& group,
                                             Learner& learner);
// The same for all ranks of the job in this process.
std::unique_ptr<Averaging> average_virtually(const Settings& settings, Learner& learner);
// The first for a learner whose seat is the model's. `data` carries gradients from GPU to GPU;
// null: the group carries them.
std::unique_ptr<Averaging> average_in_streams(const Settings& settings, Group& group,
                                              std::unique_ptr<StreamGroup> data, Learner& learner);
// The learning rate of any step, which the published correction needs.
using Rates = std::function<float(std::uint64_t step)>;
std::unique_ptr<Averaging> average_late(const Settings& settings, Group& group, Learner& learner,
                                        Rates rates);
// The same for a learner whose seat is the model's.
std::unique_ptr<Averaging> average_late_in_streams(const Settings& settings, Group& group,
                                                   std::unique_ptr<StreamGroup> data,
                                                   Learner& learner);

// --exchange and --fuse-mb.
ExchangeOptions exchange_options(const Settings& settings);

// Clips the gradient of all buckets together to the norm `longest`.
void clip_gradient(Learner& learner, double longest);

}  // namespace thinwire::train
