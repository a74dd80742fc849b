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
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>

#include "thinwire/torch/courier.h"
#include "thinwire/torch/late.h"
#include "thinwire/torch/layout.h"
#include "thinwire/torch/report.h"

namespace thinwire::ddp {

class DelayedAttachment {
 public:
  // `moments`: Adam's second moments, which are averaged alongside; empty for other optimizers.
  // Weights and moments are the same on all ranks. Collective.
  DelayedAttachment(const Connections& connections, const Cut& cut, const Moments& moments,
                    const Config& config, const DelayOptions& options);

  // Called before the optimizer's step. Throws if no step is allowed: while the anchor is shown,
  // after a parameter's type, device or shape has changed, or if weights have changed between
  // attach and the first step. With `looks` it returns 1 where this worker's gradients are not
  // finite, else 0: a number on their device.
  at::Tensor begin_step(bool looks);
  // Copies the averaged moments into those that are defined.
  void fill(const Moments& moments);
  // Called after the optimizer's step, or without one if the step was skipped: true, or a number on
  // the device that is not 0.
  using Skipped = std::variant<bool, at::Tensor>;
  void finish_step(const Moments& moments, const Skipped& skipped);
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
  Stream stream() const { return late_->stream(); }  // for tests
  // Sums of this run. Steps are this worker's, and dense is a gradient in each of them, so that
  // rarer messages count.
  Report report();
  std::uint64_t messages();
  // The last step; on a device, everything since it was asked for the last time.
  Step last_step();

 private:
  bool in_streams() const { return connections_.streams || !connections_.device.is_cpu(); }
  void check_parameters();
  void count(const Skipped& skipped);
  Report sums();

  mutable std::mutex mutex_;
  const Connections connections_;
  std::vector<Bucket> buckets_;
  std::vector<at::Tensor> parameters_;
  std::atomic<bool> shown_ = false;
  std::uint64_t steps_ = 0, skipped_ = 0;  // of this run
  at::Tensor skipped_there_;               // steps skipped by a number on the device
  Skipped last_skipped_ = false;
  Report before_;
  Step last_;
  std::unique_ptr<Late> late_;
};

}  // namespace thinwire::ddp
