// delayed.cc: decides when rounds are closed and applied.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/delay/delayed.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "thinwire/core/crc32c.h"
#include "thinwire/core/error.h"
#include "thinwire/delay/ledger.h"
#include "thinwire/delay/pipeline.h"
#include "thinwire/delay/published.h"
#include "thinwire/delay/schedule.h"
#include "thinwire/exchange/agreement.h"

namespace thinwire {
namespace {

// The number of rounds that a measurement of the delay takes: enough to see the jitter of a link.
constexpr std::uint64_t measured_rounds = 8;

}  // namespace

class DelayedAverage::Impl {
 public:
  Impl(Group& group, const std::vector<Bucket>& buckets, const Arrays& weights,
       const Config& config, const DelayOptions& options, const Arrays& moments, Replay replay);

  void correct(const Arrays& gradients);
  void finish_step(bool take_part);
  void drain();
  std::span<float> anchor(std::size_t bucket);
  void swap_anchor();
  void visit_state(StateVisitor& visitor);

  Pipeline& pipeline() { return *pipeline_; }
  std::uint64_t delay() const { return schedule_.delay(); }
  std::uint64_t steps() const { return schedule_.steps(); }
  std::uint64_t in_flight() const { return schedule_.in_flight(); }
  std::vector<double> lead(std::size_t bucket) const { return ledgers_[bucket].lead(); }

 private:
  bool published() const { return options_.correction == Correction::published; }
  void advance(bool take_part, const Arrays& gradients);
  void close_round(bool take_part);
  void take_in_due(const Arrays& gradients);
  void take_in(const Arrays& gradients);
  void settle(std::span<const Ledger::Due> due);
  void measure(double seconds);
  Message room() const;
  std::vector<std::uint32_t> digests();

  Group& group_;
  std::vector<Bucket> buckets_;
  Arrays weights_, moments_;
  DelayOptions options_;
  Replay replay_;
  std::vector<Ledger> ledgers_;  // of the weights, then of the moments
  std::vector<Published> published_;
  std::unique_ptr<Pipeline> pipeline_;
  Schedule schedule_;
  std::uint64_t timed_ = 0;       // rounds timed so far, while D is measured
  double slowest_ = 0;            // seconds of the slowest such round
  std::uint64_t steps_here_ = 0;  // steps of this run, without those before a loaded state
  std::chrono::steady_clock::time_point first_step_{};
};

DelayedAverage::Impl::Impl(Group& group, const std::vector<Bucket>& buckets, const Arrays& weights,
                           const Config& config, const DelayOptions& options, const Arrays& moments,
                           Replay replay)
    : group_(group),
      buckets_(with_moments(buckets, !moments.empty())),
      weights_(weights),
      moments_(moments),
      options_(options),
      replay_(std::move(replay)),
      schedule_(options) {
  check_delayed(options, config, buckets, !moments.empty());
  check_agreement(group, buckets_, description_of(options));
  if (weights.size() != buckets.size() || (!moments.empty() && moments.size() != buckets.size()))
    fail("delay: expected ", buckets.size(), " arrays, got ", weights.size(), " of weights and ",
         moments.size(), " of moments");
  if (published() && (!replay_ || !moments.empty()))
    fail(
        "delay: the published correction is for SGD, whose step it repeats for the anchor; take "
        "ledger or pull with Adam");
  for (std::size_t b = 0; b < buckets.size(); ++b) {
    if (published())
      published_.emplace_back(buckets_[b], weights[b]);
    else
      ledgers_.emplace_back(options, buckets_[b], weights[b], group.size());
  }
  const DelayOptions plain = of_moments(options);
  for (std::size_t b = 0; b < moments.size(); ++b)
    ledgers_.emplace_back(plain, buckets_[buckets.size() + b], moments[b], group.size());
  pipeline_ = std::make_unique<Pipeline>(group, buckets_, config, options.rounds_in_flight(),
                                         options.book_b);
}

void DelayedAverage::Impl::correct(const Arrays& gradients) {
  if (!published()) fail("delay: correct() is for the published correction");
  for (std::size_t b = 0; b < published_.size(); ++b) published_[b].add(gradients[b]);
  advance(true, gradients);
}

void DelayedAverage::Impl::finish_step(bool take_part) {
  if (!published()) advance(take_part, {});  // otherwise correct() did it
}

// Applies due rounds twice: first to make room in flight, and again for rounds without delay.
void DelayedAverage::Impl::advance(bool take_part, const Arrays& gradients) {
  if (steps_here_++ == 0) first_step_ = std::chrono::steady_clock::now();
  schedule_.begin_step();
  take_in_due(gradients);
  if (schedule_.closes()) {
    close_round(take_part);
  } else {
    for (Ledger& ledger : ledgers_) ledger.step();
  }
  take_in_due(gradients);
  if (options_.effective_pace() == 1) return;
  for (std::size_t b = 0; b < weights_.size(); ++b) ledgers_[b].settle(options_.effective_pace());
}

void DelayedAverage::Impl::drain() {
  Message gradients = room();  // the published correction's part of a next step, which is not taken
  const Arrays further(gradients.begin(), gradients.end());
  while (schedule_.in_flight() >= options_.rounds_in_flight()) take_in(further);
  close_round(true);  // sends the steps since the last round, and rounds that a worker left out
  while (schedule_.in_flight() > 0) take_in(further);
  for (Ledger& ledger : ledgers_) ledger.come_home();
  for (Published& books : published_) books.come_home();
}

Message DelayedAverage::Impl::room() const {
  Message message;
  for (const Bucket& bucket : buckets_) message.emplace_back(bucket.elements());
  return message;
}

void DelayedAverage::Impl::close_round(bool take_part) {
  Message message = room();
  for (std::size_t b = 0; b < ledgers_.size(); ++b) ledgers_[b].close(message[b], take_part);
  for (std::size_t b = 0; b < published_.size(); ++b) published_[b].close(message[b]);
  pipeline_->start(std::move(message), digests(), schedule_.steps());
  schedule_.close();
}

// Checksums of the anchors, which must be the same on all ranks after the same number of rounds.
std::vector<std::uint32_t> DelayedAverage::Impl::digests() {
  if (!schedule_.compares()) return {};
  std::vector<std::uint32_t> sums;
  for (std::size_t b = 0; b < buckets_.size(); ++b)
    sums.push_back(crc32c(std::as_bytes(anchor(b))));
  return sums;
}

void DelayedAverage::Impl::take_in_due(const Arrays& gradients) {
  while (schedule_.is_due()) take_in(gradients);
}

void DelayedAverage::Impl::take_in(const Arrays& gradients) {
  Round round = pipeline_->take();
  const Schedule::Closed closed = schedule_.take();
  std::vector<Ledger::Due> due;
  for (std::size_t b = 0; b < ledgers_.size(); ++b) {
    const std::span<const float> own = options_.book_b ? round.own[b] : std::span<const float>();
    due.push_back(ledgers_[b].acknowledge(round.mean[b], own));
  }
  settle(due);
  for (std::size_t b = 0; b < published_.size(); ++b) {
    published_[b].acknowledge(round.mean[b], gradients[b]);
    for (float& value : round.mean[b]) value /= static_cast<float>(closed.steps);
    for (std::uint64_t step = closed.at - closed.steps; step < closed.at; ++step)
      replay_(step, b, round.mean[b], published_[b].anchor());
  }
  if (options_.measure && timed_ < measured_rounds && round.seconds > 0) measure(round.seconds);
}

// Clips the correction by its length over the whole model, so that it keeps its direction.
void DelayedAverage::Impl::settle(std::span<const Ledger::Due> due) {
  double correction = 0, mean = 0;
  for (std::size_t b = 0; b < weights_.size() && b < due.size(); ++b) {
    correction += due[b].correction;
    mean += due[b].mean;
  }
  const double longest = options_.clip * std::sqrt(mean);
  const double share =
      options_.clip > 0 && std::sqrt(correction) > longest ? longest / std::sqrt(correction) : 1;
  for (std::size_t b = 0; b < ledgers_.size(); ++b) {
    const bool moments = b >= weights_.size();
    if (moments || options_.effective_pace() == 1) ledgers_[b].settle(moments ? 1 : share);
  }
  for (const std::span<float> moments : moments_) {
    for (float& value : moments) value = std::max(value, 0.0f);  // corrections may overshoot
  }
}

// The delay is the time of the slowest of the first rounds, in steps, plus one as a reserve; the
// largest over the ranks. All ranks call this after the same step.
void DelayedAverage::Impl::measure(double seconds) {
  slowest_ = std::max(slowest_, seconds);
  if (++timed_ < measured_rounds) return;
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - first_step_;
  const double per_step = time.count() / static_cast<double>(steps_here_ - 1);
  float steps[] = {static_cast<float>(std::ceil(slowest_ / std::max(per_step, 1e-9)) + 1)};
  const auto lock = pipeline_->hold();
  group_.all_reduce(std::as_writable_bytes(std::span(steps)), DType::f32, ReduceOp::max, {}).wait();
  schedule_.set_delay(std::min(options_.delay, static_cast<std::uint64_t>(steps[0])));
}

std::span<float> DelayedAverage::Impl::anchor(std::size_t bucket) {
  return published() ? published_[bucket].anchor() : ledgers_[bucket].anchor();
}

void DelayedAverage::Impl::swap_anchor() {
  for (std::size_t b = 0; b < weights_.size(); ++b)
    std::ranges::swap_ranges(anchor(b), weights_[b]);
}

void DelayedAverage::Impl::visit_state(StateVisitor& visitor) {
  schedule_.visit_state(visitor);
  // An unfinished measurement starts again, because clocks do not survive a restart.
  std::uint64_t timed = timed_ < measured_rounds ? 0 : timed_;
  visit_count(visitor, "delay/acknowledged", timed);
  if (steps_here_ == 0) timed_ = timed < measured_rounds ? 0 : timed;
  for (Ledger& ledger : ledgers_) ledger.visit_state(visitor);
  for (Published& books : published_) books.visit_state(visitor);
  pipeline_->visit_state(visitor);
}

DelayedAverage::DelayedAverage(Group& group, const std::vector<Bucket>& buckets,
                               const Arrays& weights, const Config& config,
                               const DelayOptions& options, const Arrays& moments, Replay replay)
    : impl_(std::make_unique<Impl>(group, buckets, weights, config, options, moments,
                                   std::move(replay))) {}
DelayedAverage::DelayedAverage(Group& group, const std::vector<Bucket>& buckets,
                               const Arrays& weights, const Config& config,
                               const DelayOptions& options, const Arrays& moments)
    : DelayedAverage(group, buckets, weights, config, options, moments, Replay()) {}
DelayedAverage::~DelayedAverage() = default;

void DelayedAverage::correct(const Arrays& gradients) { impl_->correct(gradients); }
void DelayedAverage::finish_step(bool take_part) { impl_->finish_step(take_part); }
void DelayedAverage::drain() { impl_->drain(); }
void DelayedAverage::await_arrivals() { impl_->pipeline().await_arrivals(); }
std::span<float> DelayedAverage::anchor(std::size_t bucket) { return impl_->anchor(bucket); }
void DelayedAverage::swap_anchor() { impl_->swap_anchor(); }
std::unique_lock<std::mutex> DelayedAverage::hold() { return impl_->pipeline().hold(); }
std::uint64_t DelayedAverage::delay() const { return impl_->delay(); }
std::uint64_t DelayedAverage::steps() const { return impl_->steps(); }
std::uint64_t DelayedAverage::in_flight() const { return impl_->in_flight(); }
Report DelayedAverage::report() const { return impl_->pipeline().report(); }
void DelayedAverage::observe(Observer observer) { impl_->pipeline().observe(std::move(observer)); }
std::vector<double> DelayedAverage::lead(std::size_t bucket) const { return impl_->lead(bucket); }
void DelayedAverage::visit_state(StateVisitor& visitor) { impl_->visit_state(visitor); }

}  // namespace thinwire
