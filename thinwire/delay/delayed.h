// delayed.h: delayed averaging of a model over the workers (Zhu et al. 2021): every worker trains on
// its own while its messages travel; what the others did is taken in D steps later.
//
//     thinwire::DelayedAverage delayed(group, buckets, weights, Config::parse("dense"),
//                                      {.delay = 20, .local_steps = 5});
//     for each step:
//       compute gradients; optimizer.step();   // on this worker's weights
//       delayed.finish_step();                 // waits only for messages older than D steps
//     delayed.drain();                         // the weights of all workers are now the same
//
// delay = 0 is FedAvg with K local steps, and with K = 1 synchronous training, by the same code.
// What is evaluated and saved is the anchor: it follows from received bytes alone, and is the same,
// bit for bit, on all workers after equal numbers of steps. docs/delay.md has the whole story.
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

// Arrays of the caller, one per bucket.
using Arrays = std::vector<std::span<float>>;

class DelayedAverage {
 public:
  // The optimizer's step `step` on an array other than the weights: what the published correction's
  // anchor needs.
  using Replay = std::function<void(std::uint64_t step, std::size_t bucket,
                                    std::span<const float> gradient, std::span<float> anchor)>;

  // `weights` live longer than this. `moments`: second moments of a local Adam, or nothing; they are
  // averaged alongside, or workers with other data would each scale their steps by their own. A
  // collective; throws an Error for settings that clash, and for ranks that do not agree.
  DelayedAverage(Group& group, const std::vector<Bucket>& buckets, const Arrays& weights,
                 const Config& config, const DelayOptions& options, const Arrays& moments = {},
                 Replay replay = {});
  ~DelayedAverage();
  DelayedAverage(const DelayedAverage&) = delete;
  DelayedAverage& operator=(const DelayedAverage&) = delete;

  // Published correction only, before the optimizer's step: takes note of the gradients, and adds
  // what is due to them. A void step is one of zeros.
  void correct(const Arrays& gradients);

  // After the optimizer's step, or without one where it was void. A worker that does not take part
  // (its link is down) sends nothing of this round; what it did travels with the next.
  void finish_step(bool take_part = true);

  // Takes in everything that is under way. All workers end with the anchor as their weights. What a
  // compressor still holds back stays in the state, for steps that may follow. A collective.
  void drain();

  // Waits until everything under way has arrived. It is still taken in when it is due. At the same
  // step on all ranks.
  void await_arrivals();

  std::span<float> anchor(std::size_t bucket);
  // Swaps weights and anchor, to evaluate the anchor; again, to go on.
  void swap_anchor();
  // The group for the caller's own collectives, at the same step on all ranks.
  std::unique_lock<std::mutex> hold();

  std::uint64_t delay() const;  // D; with `measure` the measured one, once it is known
  std::uint64_t steps() const;  // in all, including those before a loaded state
  std::uint64_t in_flight() const;
  Report report() const;
  void observe(Observer observer);
  // Exact: messages under way are waited for, and belong to the state.
  void visit_state(StateVisitor& visitor);

  // By element of a bucket, for the laws: own weights = anchor + lead (corrections ledger, none).
  std::vector<double> lead(std::size_t bucket) const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace thinwire
