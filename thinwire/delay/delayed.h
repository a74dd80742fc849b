// delayed.h: delayed averaging of a model over the workers (Zhu et al. 2021). Every worker goes on
// training while its messages are in flight, and applies the other workers' updates D steps later.
//
//     thinwire::DelayedAverage delayed(group, buckets, weights, Config::parse("dense"),
//                                      {.delay = 20, .local_steps = 5});
//     for each step:
//       compute gradients; optimizer.step();   // on this worker's weights
//       delayed.finish_step();                 // waits only for messages older than D steps
//     delayed.drain();                         // the weights of all workers are now the same
//
// delay = 0 is FedAvg with K local steps, and with K = 1 synchronous training, by the same code.
// The anchor is the model to evaluate and save: it depends only on received bytes, and is
// bit-identical on all workers after the same number of steps. docs/delay.md explains the method.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "thinwire/comm/group.h"
#include "thinwire/core/options.h"
#include "thinwire/core/state.h"
#include "thinwire/core/view.h"
#include "thinwire/delay/options.h"
#include "thinwire/exchange/exchange.h"

namespace thinwire {

// Arrays that the caller owns, one per bucket.
using Arrays = std::vector<std::span<float>>;

class DelayedAverage {
 public:
  // `weights` must outlive this object. `moments` are the second moments of a local Adam, or empty.
  // They are averaged as well; otherwise workers with different data would scale their steps
  // differently. A collective. Throws an Error for settings that conflict, and for ranks that do
  // not agree.
  DelayedAverage(Group& group, const std::vector<Bucket>& buckets, const Arrays& weights,
                 const Config& config, const DelayOptions& options, const Arrays& moments = {});
  ~DelayedAverage();
  DelayedAverage(const DelayedAverage&) = delete;
  DelayedAverage& operator=(const DelayedAverage&) = delete;

  // Call it after the optimizer's step, and also after a skipped step. A worker that does not take
  // part (its link is down) sends zeros in this round; its updates are sent with the next one.
  void finish_step(bool take_part = true);

  // Waits for all messages in flight and applies them. All workers then have the anchor as their
  // weights. What a compressor still holds back stays in the state, for later steps. A collective.
  void drain();

  // Waits until all messages in flight have arrived. They are still applied when they are due. Call
  // it at the same step on all ranks.
  void await_arrivals();

  std::span<float> anchor(std::size_t bucket);
  // Swaps weights and anchor, to evaluate the anchor. Swap again to go on training.
  void swap_anchor();
  // Locks the group for the caller's own collectives. Call it at the same step on all ranks.
  std::unique_lock<std::mutex> hold();

  std::uint64_t delay() const;  // D; with `measure` the measured one, once it is known
  std::uint64_t steps() const;  // in all, including those before a loaded state
  std::uint64_t in_flight() const;
  Report report() const;
  void observe(Observer observer);
  // Waits for messages in flight, which belong to the state, so that resuming is exact.
  void visit_state(StateVisitor& visitor);

  // For tests of the laws, by element: own weights = anchor + lead (corrections ledger, none).
  std::vector<double> lead(std::size_t bucket) const;

 protected:
  // For the published correction: see PublishedAverage in published.h.
  using Replay = std::function<void(std::uint64_t step, std::size_t bucket,
                                    std::span<const float> gradient, std::span<float> anchor)>;
  DelayedAverage(Group& group, const std::vector<Bucket>& buckets, const Arrays& weights,
                 const Config& config, const DelayOptions& options, const Arrays& moments,
                 Replay replay);
  void correct(const Arrays& gradients);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace thinwire
