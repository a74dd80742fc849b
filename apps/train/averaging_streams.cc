// averaging_streams.cc: synchronous training where the model is: gradients, averages, weights and
// the memory of scheme and optimizer stay on the GPU, and all work on them is in streams. The host
// waits once after backward, to learn whether the step is skipped.
// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <utility>
#include <vector>

#include "apps/train/averaging.h"
#include "apps/train/clock.h"
#include "apps/train/engine.h"
#include "apps/train/optimizer.h"
#include "apps/train/optimizer_torch.h"
#include "apps/train/placed.h"
#include "thinwire/exchange/stream_exchange.h"

namespace thinwire::train {
namespace {

class InStreams final : public Averaging {
 public:
  InStreams(const Settings& settings, Group& group, std::unique_ptr<StreamGroup> data,
            Learner& learner)
      : settings_(settings),
        learner_(learner),
        device_(learner.weights_view(0).device),
        data_(std::move(data)),
        optimizer_(settings, learner.buckets(), device_),
        exchange_({group, data_.get(), device_, options_of(settings).timeout}, learner.buckets(),
                  settings.config, exchange_options(settings)),
        norm_(device_, learner.buckets()),
        shown_(learner.buckets().size()) {}

  void submit(std::uint16_t bucket) override {
    exchange_.submit(bucket, learner_.gradient_view(bucket), models_stream);
  }

  Result finish(float rate, const Learner::Phase& phase) override {
    const auto computed = Clock::now();
    exchange_.finish(models_stream);
    const StepResult result = exchange_.outcome();
    const auto averaged = Clock::now();
    phase("wait", computed, averaged);
    if (!result.skipped) enqueue_update(rate);
    const auto updated = Clock::now();
    phase("update", averaged, updated);
    return {result.skipped, seconds(computed, averaged), seconds(averaged, updated)};
  }

  std::span<const float> model(std::size_t bucket) override {
    return shown_[bucket] = copy_to_host(learner_.weights_view(bucket));
  }
  std::unique_ptr<Showing> show() override { return std::make_unique<Showing>(); }
  bool in_step() const override { return true; }
  Report report() override { return exchange_.report(); }
  bool timed() const override { return false; }
  void observe(Observer) override {}

  void visit_state(StateVisitor& visitor) override {
    for (const Bucket& bucket : learner_.buckets())
      visit_placed(visitor, bucket, "weights", learner_.weights_view(bucket.id), Share::replicated);
    optimizer_.visit_state(visitor, learner_.buckets());
    exchange_.visit_state(visitor);
  }

 private:
  void enqueue_update(float rate) {
    if (settings_.clip_average) clip();
    for (const Bucket& bucket : learner_.buckets())
      optimizer_.enqueue_step(bucket, rate, learner_.gradient_view(bucket.id),
                              learner_.weights_view(bucket.id));
  }

  // clip_gradient() in the same bits.
  void clip() {
    double sum = 0;
    for (const Bucket& bucket : learner_.buckets())
      sum += norm_.of(learner_.gradient_view(bucket.id));
    const double norm = std::sqrt(sum);
    if (!(norm > settings_.clip)) return;
    for (const Bucket& bucket : learner_.buckets())
      torch_scale(learner_.gradient_view(bucket.id), static_cast<float>(settings_.clip / norm));
  }

  const Settings& settings_;
  Learner& learner_;
  const Device device_;
  std::unique_ptr<StreamGroup> data_;
  Optimizer optimizer_;
  StreamExchange exchange_;
  SquaredNorm norm_;
  std::vector<std::vector<float>> shown_;  // copies of the weights, by bucket
};

}  // namespace

std::unique_ptr<Averaging> average_in_streams(const Settings& settings, Group& group,
                                              std::unique_ptr<StreamGroup> data, Learner& learner) {
  return std::make_unique<InStreams>(settings, group, std::move(data), learner);
}

}  // namespace thinwire::train
