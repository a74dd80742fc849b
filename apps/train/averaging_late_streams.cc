// averaging_late_streams.cc: delayed averaging where the model is: weights, anchor, ledgers and
// messages stay on the GPU. The host waits once after backward, to learn whether the gradient is
// finite, and for messages only when they are as old as the delay.
// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "apps/train/averaging.h"
#include "apps/train/clock.h"
#include "apps/train/engine.h"
#include "apps/train/optimizer.h"
#include "apps/train/optimizer_torch.h"
#include "apps/train/placed.h"
#include "thinwire/delay/stream_delayed.h"

namespace thinwire::train {
namespace {

LedgerPieces pieces_of(const TensorView& values) {
  LedgerPieces pieces;
  add_pieces(pieces, static_cast<float*>(values.data), 0, values.count);
  return pieces;
}

class LateInStreams final : public Averaging {
 public:
  LateInStreams(const Settings& settings, Group& group, std::unique_ptr<StreamGroup> data,
                Learner& learner)
      : settings_(settings),
        learner_(learner),
        device_(learner.weights_view(0).device),
        data_(std::move(data)),
        optimizer_(settings, learner.buckets(), device_),
        norm_(device_, learner.buckets()),
        shown_(learner.buckets().size()) {
    std::vector<LedgerPieces> weights, moments;
    for (const Bucket& bucket : learner.buckets()) {
      weights.push_back(pieces_of(learner.weights_view(bucket.id)));
      if (optimizer_.adam()) moments.push_back(pieces_of(optimizer_.second_moment_view(bucket.id)));
    }
    delayed_.emplace(StreamLink{group, data_.get(), device_, options_of(settings).timeout},
                     learner.buckets(), weights, settings.config, *settings.delayed, moments);
  }

  void submit(std::uint16_t) override {}

  Result finish(float rate, const Learner::Phase& phase) override {
    delayed_->expect_step();
    double sum = 0;
    for (const Bucket& bucket : learner_.buckets())
      sum += norm_.of(learner_.gradient_view(bucket.id));
    const bool finite = std::isfinite(sum);
    const auto known = Clock::now();
    if (finite) enqueue_update(rate, std::sqrt(sum));
    const auto updated = Clock::now();
    delayed_->finish_step(models_stream);
    const auto done = Clock::now();
    ++steps_;
    phase("update", known, updated);
    phase("take in", updated, done);
    return {!finite, seconds(updated, done), seconds(known, updated)};
  }

  void await_arrivals() override { delayed_->await_arrivals(); }
  void complete() override { delayed_->drain(models_stream); }

  std::span<const float> model(std::size_t bucket) override {
    TensorView anchor = learner_.weights_view(bucket);
    anchor.data = const_cast<float*>(delayed_->anchor(bucket, models_stream));
    shown_[bucket] = copy_to_host(anchor);
    delayed_->keep_off(models_stream);
    return shown_[bucket];
  }

  std::unique_ptr<Showing> show() override {
    class Shown final : public Showing {
     public:
      explicit Shown(StreamDelayedAverage& delayed) : delayed_(delayed), lock_(delayed.hold()) {
        delayed_.show_anchor(models_stream);
      }
      ~Shown() override { delayed_.hide_anchor(models_stream); }
      Shown(const Shown&) = delete;
      Shown& operator=(const Shown&) = delete;

     private:
      StreamDelayedAverage& delayed_;
      std::unique_lock<std::mutex> lock_;
    };
    return std::make_unique<Shown>(*delayed_);
  }

  bool in_step() const override { return false; }
  std::unique_lock<std::mutex> hold() override { return delayed_->hold(); }
  // The ratio is relative to sending gradients in every step, so that rarer messages count.
  Report report() override {
    Report report = delayed_->report();
    report.dense_bytes = 0;
    for (const Bucket& bucket : learner_.buckets())
      report.dense_bytes += steps_ * bucket.elements() * sizeof(float);
    return report;
  }
  bool timed() const override { return false; }
  void observe(Observer) override {}

  void visit_state(StateVisitor& visitor) override {
    optimizer_.visit_state(visitor, learner_.buckets());
    delayed_->visit_state(visitor, models_stream);
  }

 private:
  // clip_gradient() and Optimizer::step() in the same bits.
  void enqueue_update(float rate, double norm) {
    for (const Bucket& bucket : learner_.buckets()) {
      if (settings_.clip > 0 && norm > settings_.clip)
        torch_scale(learner_.gradient_view(bucket.id), static_cast<float>(settings_.clip / norm));
      optimizer_.enqueue_step(bucket, rate, learner_.gradient_view(bucket.id),
                              learner_.weights_view(bucket.id));
    }
  }

  const Settings& settings_;
  Learner& learner_;
  const Device device_;
  std::unique_ptr<StreamGroup> data_;
  Optimizer optimizer_;
  SquaredNorm norm_;
  std::vector<std::vector<float>> shown_;  // copies of the anchor, by bucket
  std::uint64_t steps_ = 0;                // of this run
  std::optional<StreamDelayedAverage> delayed_;
};

}  // namespace

std::unique_ptr<Averaging> average_late_in_streams(const Settings& settings, Group& group,
                                                   std::unique_ptr<StreamGroup> data,
                                                   Learner& learner) {
  return std::make_unique<LateInStreams>(settings, group, std::move(data), learner);
}

}  // namespace thinwire::train
