// averaging_late.cc: delayed averaging: every worker updates its own weights at once, and takes in
// the other workers' updates when they arrive.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>

#include "apps/train/averaging.h"
#include "apps/train/optimizer.h"
#include "thinwire/delay/published.h"
#include "thinwire/kernels/norm.h"

namespace thinwire::train {
namespace {

using Clock = std::chrono::steady_clock;

// Visits under other names: the anchor's optimizer beside the worker's.
class Renaming final : public StateVisitor {
 public:
  Renaming(StateVisitor& inner, std::string suffix) : inner_(inner), suffix_(std::move(suffix)) {}
  void tensor(const std::string& name, std::span<float> values, Share share) override {
    inner_.tensor(name + suffix_, values, share);
  }
  void number(const std::string& name, double& value, Share share) override {
    inner_.number(name + suffix_, value, share);
  }

 private:
  StateVisitor& inner_;
  std::string suffix_;
};

class Late final : public Averaging {
 public:
  Late(const Settings& settings, Group& group, Learner& learner, Rates rates)
      : settings_(settings),
        rate_of_(std::move(rates)),
        learner_(learner),
        optimizer_(settings, learner.buckets()),
        published_(settings.delayed->correction == Correction::published) {
    if (published_) anchor_optimizer_.emplace(settings, learner.buckets());
    Arrays weights, moments;
    for (const Bucket& bucket : learner.buckets()) {
      weights.push_back(learner.weights(bucket.id));
      gradients_.push_back(learner.gradient(bucket.id));
      if (optimizer_.adam()) moments.push_back(optimizer_.second_moment(bucket.id));
    }
    delayed_.emplace(group, learner.buckets(), weights, settings.config, *settings.delayed, moments,
                     [this](std::uint64_t step, std::size_t bucket, std::span<const float> gradient,
                            std::span<float> anchor) {
                       anchor_optimizer_->step(learner_.buckets()[bucket], rate_of_(step), gradient,
                                               anchor);
                     });
  }

  void submit(std::uint16_t) override {}

  Result finish(float rate, const Learner::Phase& phase) override {
    const auto computed = Clock::now();
    const double waited = delayed_->report().wait_seconds;
    const bool finite = std::isfinite(gradient_norm());
    if (!finite) zero_gradient();
    if (settings_.clip > 0) clip_gradient(learner_, settings_.clip);
    if (published_) delayed_->correct(gradients_);
    const auto corrected = Clock::now();
    for (const Bucket& bucket : learner_.buckets()) {
      if (finite || published_)
        optimizer_.step(bucket, rate, learner_.gradient(bucket.id), learner_.weights(bucket.id));
    }
    const auto updated = Clock::now();
    delayed_->finish_step();
    const auto done = Clock::now();
    ++steps_;
    phase("update", corrected, updated);
    phase("take in", published_ ? computed : updated, published_ ? corrected : done);
    const double exposed = delayed_->report().wait_seconds - waited;
    return {!finite, exposed, std::chrono::duration<double>(done - computed).count() - exposed};
  }

  void await_arrivals() override { delayed_->await_arrivals(); }
  void complete() override { delayed_->drain(); }

  std::span<const float> model(std::size_t bucket) override { return delayed_->anchor(bucket); }

  std::unique_ptr<Showing> show() override {
    class Swapped final : public Showing {
     public:
      explicit Swapped(DelayedAverage& delayed) : delayed_(delayed), lock_(delayed.hold()) {
        delayed_.swap_anchor();
      }
      ~Swapped() override { delayed_.swap_anchor(); }
      Swapped(const Swapped&) = delete;
      Swapped& operator=(const Swapped&) = delete;

     private:
      DelayedAverage& delayed_;
      std::unique_lock<std::mutex> lock_;
    };
    return std::make_unique<Swapped>(*delayed_);
  }

  bool in_step() const override { return false; }
  std::unique_lock<std::mutex> hold() override { return delayed_->hold(); }
  // The ratio is relative to sending gradients in every step, so that rarer messages count.
  Report report() override {
    Report report = delayed_->report();
    report.dense_bytes = 0;
    for (const std::span<float> gradient : gradients_)
      report.dense_bytes += steps_ * gradient.size_bytes();
    return report;
  }
  void observe(Observer observer) override { delayed_->observe(std::move(observer)); }

  void visit_state(StateVisitor& visitor) override {
    optimizer_.visit_state(visitor, learner_.buckets());
    if (anchor_optimizer_) {
      Renaming renaming(visitor, "/anchor");
      anchor_optimizer_->visit_state(renaming, learner_.buckets());
    }
    delayed_->visit_state(visitor);
  }

 private:
  double gradient_norm() const {
    double sum = 0;
    for (const std::span<float> gradient : gradients_)
      sum += squared_norm(gradient.data(), gradient.size());
    return sum;
  }

  void zero_gradient() {
    for (const std::span<float> gradient : gradients_) std::ranges::fill(gradient, 0.0f);
  }

  const Settings& settings_;
  const Rates rate_of_;
  Learner& learner_;
  Optimizer optimizer_;
  const bool published_;
  std::optional<Optimizer> anchor_optimizer_;  // published: repeats the updates from the averages
  Arrays gradients_;
  std::optional<PublishedAverage> delayed_;
  std::uint64_t steps_ = 0;  // of this run
};

}  // namespace

std::unique_ptr<Averaging> average_late(const Settings& settings, Group& group, Learner& learner,
                                        Rates rates) {
  return std::make_unique<Late>(settings, group, learner, std::move(rates));
}

}  // namespace thinwire::train
