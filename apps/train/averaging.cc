// averaging.cc: synchronous training: every worker makes the same update from the averaged
// gradient.
// SPDX-License-Identifier: Apache-2.0
#include "apps/train/averaging.h"

#include <cmath>
#include <optional>
#include <utility>

#include "apps/train/clock.h"
#include "apps/train/optimizer.h"
#include "thinwire/exchange/virtual_exchange.h"
#include "thinwire/kernels/norm.h"

namespace thinwire::train {
namespace {

// All ranks of the job, used as an Exchange of the rank whose turn it is.
class TakesTurns {
 public:
  TakesTurns(const Settings& settings, Learner& learner)
      : learner_(learner),
        link_(settings.emulated),
        exchange_(settings.virtual_workers, learner.buckets(), settings.config,
                  exchange_options(settings)) {}

  // Servers have room of their own for the averages.
  void submit(std::uint16_t bucket, std::span<float> gradient) {
    const int rank = learner_.rank();
    if (rank < exchange_.workers()) exchange_.submit(rank, bucket, gradient);
  }

  StepResult finish() {
    learner_.turn_to(0);  // it gets the averages
    return exchange_.finish();
  }

  double link_seconds() const { return link_ ? exchange_.seconds_over(*link_) : 0; }
  Report report() const { return exchange_.report(learner_.rank()); }
  void observe(const Observer&) {}  // only --trace observes: check() in settings.h rejects it
  void visit_state(StateVisitor& visitor) { exchange_.visit_state(learner_.rank(), visitor); }

 private:
  Learner& learner_;
  const std::optional<Link> link_;
  VirtualExchange exchange_;
};

double link_seconds(const Exchange&) { return 0; }  // they are part of `exposed`
double link_seconds(const TakesTurns& exchange) { return exchange.link_seconds(); }

template <typename Via>
class Synchronous final : public Averaging {
 public:
  template <typename... Arguments>
  Synchronous(const Settings& settings, Learner& learner, Arguments&&... of_exchange)
      : settings_(settings),
        learner_(learner),
        optimizer_(settings, learner.buckets()),
        exchange_(std::forward<Arguments>(of_exchange)...) {}

  void submit(std::uint16_t bucket) override {
    exchange_.submit(bucket, learner_.gradient(bucket));
  }

  Result finish(float rate, const Learner::Phase& phase) override {
    const auto computed = Clock::now();
    const StepResult result = exchange_.finish();
    const auto averaged = Clock::now();
    phase("wait", computed, averaged);
    if (!result.skipped) update(rate);
    const auto updated = Clock::now();
    phase("update", averaged, updated);
    return {result.skipped, seconds(computed, averaged), seconds(averaged, updated),
            link_seconds(exchange_)};
  }

  std::span<const float> model(std::size_t bucket) override { return learner_.weights(bucket); }
  std::unique_ptr<Showing> show() override { return std::make_unique<Showing>(); }
  bool in_step() const override { return true; }
  Report report() override { return exchange_.report(); }
  void observe(Observer observer) override { exchange_.observe(std::move(observer)); }

  void visit_state(StateVisitor& visitor) override {
    for (const Bucket& bucket : learner_.buckets())
      visit_by_parameter(visitor, bucket, "weights", learner_.weights(bucket.id),
                         Share::replicated);
    optimizer_.visit_state(visitor, learner_.buckets());
    exchange_.visit_state(visitor);
  }

 private:
  // Every rank has the same averages, so every rank makes the same update.
  void update(float rate) {
    if (settings_.clip_average) clip_gradient(learner_, settings_.clip);
    for (const Bucket& bucket : learner_.buckets())
      optimizer_.step(bucket, rate, learner_.gradient(bucket.id), learner_.weights(bucket.id));
  }

  const Settings& settings_;
  Learner& learner_;
  Optimizer optimizer_;
  Via exchange_;
};

}  // namespace

std::unique_ptr<Averaging> average_gradients(const Settings& settings, Group& group,
                                             Learner& learner) {
  return std::make_unique<Synchronous<Exchange>>(settings, learner, group, learner.buckets(),
                                                 settings.config, exchange_options(settings));
}

std::unique_ptr<Averaging> average_virtually(const Settings& settings, Learner& learner) {
  return std::make_unique<Synchronous<TakesTurns>>(settings, learner, settings, learner);
}

ExchangeOptions exchange_options(const Settings& settings) {
  return {.kind = settings.meeting, .fuse_bytes = static_cast<std::size_t>(settings.fuse_mb * 1e6)};
}

void clip_gradient(Learner& learner, double longest) {
  double sum = 0;
  for (std::size_t i = 0; i < learner.buckets().size(); ++i) {
    const std::span<const float> gradient = learner.gradient(i);
    sum += squared_norm(gradient.data(), gradient.size());
  }
  const double norm = std::sqrt(sum);
  if (!(norm > longest)) return;
  const auto scale = static_cast<float>(longest / norm);
  for (std::size_t i = 0; i < learner.buckets().size(); ++i) {
    for (float& value : learner.gradient(i)) value *= scale;
  }
}

}  // namespace thinwire::train
