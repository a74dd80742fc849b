// delayed_attachment.h: delayed averaging (thinwire/delay) attached to one PyTorch model. The
// model's own optimizer steps it. After each step, finish_step() sends what the step did and takes
// in what the others did D steps ago. It waits only for messages older than that.
//
// Parameters and moments come by name and bucket. All ranks must call a method marked "collective"
// after the same step.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "thinwire/comm/group.h"
#include "thinwire/delay/delayed.h"
#include "thinwire/torch/flat.h"
#include "thinwire/torch/layout.h"
#include "thinwire/torch/report.h"

namespace thinwire::ddp {

// By parameter, in the order of the cut; undefined if the optimizer has none yet.
using Moments = std::vector<at::Tensor>;

class DelayedAttachment {
 public:
  // `moments`: Adam's second moments, which are averaged alongside; empty for other optimizers.
  // Weights and moments are the same on all ranks. Collective.
  DelayedAttachment(std::shared_ptr<Group> group, const Cut& cut, const Moments& moments,
                    const Config& config, const DelayOptions& options);

  // Called before the optimizer's step. Returns whether this worker's gradients are finite. Throws
  // if no step is allowed: while the anchor is shown, after a parameter's type or shape has
  // changed, or if weights have changed between attach and the first step.
  bool finite();
  // Copies the averaged moments into those that are defined.
  void fill(const Moments& moments);
  // Called after the optimizer's step, or without one if the step was skipped.
  void finish_step(const Moments& moments, bool skipped);
  // Applies all messages in flight; all workers then have the same weights. Collective.
  void drain(const Moments& moments);

  // The parameters hold the anchor until hide_anchor(), which discards whatever they hold then.
  void show_anchor();
  void hide_anchor();

  // Throws an Error that names `what` while the anchor is shown.
  void leave_anchor(const char* what) const;

  // Exact, with messages in flight. Can be loaded only before the first step of this run. A load
  // that throws may have loaded a part; then load what state() returned before.
  State state(const Moments& moments);
  void load(const State& state, const Moments& moments);

  // Averages over the workers, in place. Collective.
  void average(const at::Tensor& values);
  // Throws when an anchor, or one of `others`, differs between ranks, and names it. Collective.
  void check_replicas(const std::vector<std::pair<std::string, at::Tensor>>& others);
  // Throws what has gone wrong with the messages in flight, if anything has.
  void check_messages();

  std::uint64_t steps() const;  // in all, those before a resumed checkpoint too
  std::uint64_t delay() const;
  std::uint64_t in_flight() const;
  // Sums of this run. Steps are this worker's, and dense is a gradient in each of them, so that
  // rarer messages count.
  Report report() const;
  std::uint64_t messages() const;
  Step last_step() const;

 private:
  void take(const Moments& moments);
  void give(const Moments& moments);
  void check_parameters() const;
  Report sums() const;

  mutable std::mutex mutex_;
  std::shared_ptr<Group> group_;
  std::vector<Bucket> buckets_;
  std::vector<at::Tensor> parameters_;
  Flat weights_;
  std::optional<Flat> moments_;
  std::atomic<bool> shown_ = false;
  std::uint64_t steps_ = 0, skipped_ = 0;  // of this run
  Report before_;
  Step last_;
  std::optional<DelayedAverage> delayed_;  // last: works on all of these
};

}  // namespace thinwire::ddp
