// stream_delayed.cc: decides when rounds are closed and applied, and what waits for what.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/delay/stream_delayed.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <string>
#include <utility>

#include "thinwire/compress/registry.h"
#include "thinwire/core/error.h"
#include "thinwire/delay/fit.h"
#include "thinwire/delay/schedule.h"
#include "thinwire/delay/stream_ledger.h"
#include "thinwire/delay/stream_pipeline.h"
#include "thinwire/exchange/agreement.h"
#include "thinwire/exchange/stream_norm.h"
#include "thinwire/kernels/norm.h"

namespace thinwire {

void check_in_streams(const DelayOptions& options) {
  if (options.correction == Correction::published)
    fail(
        "delay: the published correction repeats the optimizer's step on the CPU; take soft or "
        "ledger for weights on CUDA");
  if (options.measure)
    fail("delay: ", options.delay_str(),
         " measures when messages arrive, which nobody sees in "
         "streams of a device; give a number of steps for weights on CUDA");
}

// Such a scheme waits in every call, and so would each step, however young its message is.
static void check_on_device(const Config& config, Device device) {
  if (device.kind == Device::Kind::cpu) return;
  if (const std::string why = why_on_host(config); !why.empty())
    fail("delay: scheme ", config.str(), " works on the host: ", why,
         "; take a scheme that has kernels for CUDA, or train on the CPU");
}

class StreamDelayedAverage::Impl {
 public:
  Impl(const StreamLink& link, const std::vector<Bucket>& buckets,
       const std::vector<LedgerPieces>& weights, const Config& config, const DelayOptions& options,
       const std::vector<LedgerPieces>& moments)
      : link_(link),
        options_(options),
        weights_(buckets.size()),
        schedule_(options),
        scope_(link.device),
        side_(link.device),
        ready_(link.device),
        moved_(link.device) {
    check_in_streams(options);
    check_on_device(config, link.device);
    check_delayed(options, config, buckets, !moments.empty());
    const std::vector<Bucket> all = with_moments(buckets, !moments.empty());
    check_agreement(link.group, all, description_of(options));
    if (weights.size() != buckets.size() || (!moments.empty() && moments.size() != buckets.size()))
      fail("delay: expected ", buckets.size(), " buckets, got ", weights.size(), " of weights and ",
           moments.size(), " of moments");
    const auto workers = static_cast<std::size_t>(link.group.size());
    const std::size_t depth = options.rounds_in_flight();
    for (std::size_t b = 0; b < weights.size(); ++b)
      ledgers_.emplace_back(options, all[b], weights[b], workers, depth, false, side_);
    for (std::size_t b = 0; b < moments.size(); ++b)
      ledgers_.emplace_back(of_moments(options), all[weights_ + b], moments[b], workers, depth,
                            true, side_);
    make_room();
    pipeline_ = std::make_unique<StreamPipeline>(link, all, config, depth, options.book_b, side_,
                                                 [this] { return bad_parameter(); });
    scope_.reset();
  }

  void place(const std::vector<LedgerPieces>& weights, const std::vector<LedgerPieces>& moments,
             Stream now) {
    const DeviceScope scope(link_.device);
    for (std::size_t b = 0; b < weights.size(); ++b) ledgers_[b].place(weights[b], now);
    for (std::size_t b = 0; b < moments.size(); ++b) ledgers_[weights_ + b].place(moments[b], now);
  }

  void expect_step() {
    const DeviceScope scope(link_.device);
    pipeline_->look();
    if (!pending_ && schedule_.delay() > 0 && schedule_.is_due(1) && pipeline_->ready()) take_in();
  }

  void finish_step(Stream now, bool take_part) {
    const DeviceScope scope(link_.device);
    schedule_.begin_step();
    while (schedule_.is_due()) take_in();
    const bool closes = schedule_.closes(), late = schedule_.delay() > 0;
    if (closes && !take_part) run({.takes = true}, now);
    // Without delay a round is applied between its end and the next correction.
    run({.takes = take_part || !closes, .closes = closes, .settles = late}, now);
    if (closes) start_round();
    if (!late) {
      while (schedule_.is_due()) take_in();
      run({.settles = true}, now);
    }
    pipeline_->look();
  }

  void drain(Stream now) {
    const DeviceScope scope(link_.device);
    while (schedule_.in_flight() >= options_.rounds_in_flight()) take_in();
    run({.takes = true, .closes = true}, now);
    start_round();
    while (schedule_.in_flight() > 0) take_in();
    before(now);
    for (StreamLedger& ledger : ledgers_) ledger.come_home(now);
    after(now);
    for (StreamLedger& ledger : ledgers_) ledger.forget_due();
    pending_ = false;
    pipeline_->settle();
  }

  const float* anchor(std::size_t bucket, Stream now) {
    const DeviceScope scope(link_.device);
    before(now);
    return ledgers_[bucket].anchor();
  }

  void keep_off(Stream now) {
    const DeviceScope scope(link_.device);
    after(now);
  }

  void show_anchor(Stream now) {
    const DeviceScope scope(link_.device);
    if (aside_.empty()) {
      for (std::size_t b = 0; b < weights_; ++b) aside_.push_back(room(ledgers_[b].count()));
    }
    before(now);
    for (std::size_t b = 0; b < weights_; ++b) {
      ledgers_[b].copy_out(aside_[b].as<float>(), now);
      ledgers_[b].copy_in(ledgers_[b].anchor(), now);
    }
    after(now);
  }

  void hide_anchor(Stream now) {
    const DeviceScope scope(link_.device);
    for (std::size_t b = 0; b < weights_; ++b) ledgers_[b].copy_in(aside_[b].as<float>(), now);
  }

  void visit_state(StateVisitor& visitor, Stream now) {
    const DeviceScope scope(link_.device);
    pipeline_->await_arrivals();
    pipeline_->settle();
    if (pending_) run({}, now);  // a step was expected, and did not come
    after(now);
    schedule_.visit_state(visitor);
    std::uint64_t timed = 0;  // as a DelayedAverage that measures nothing
    visit_count(visitor, "delay/acknowledged", timed);
    for (StreamLedger& ledger : ledgers_) ledger.visit_state(visitor);
    pipeline_->visit_state(visitor);
  }

  StreamPipeline& pipeline() { return *pipeline_; }
  const Schedule& schedule() const { return schedule_; }
  Stream side() const { return side_.get(); }

 private:
  Buffer room(std::size_t count, std::size_t size = sizeof(float)) const {
    return {place_on(link_.device), count * size, link_.device};
  }

  void make_room() {
    digests_ = room(ledgers_.size(), sizeof(std::uint64_t));
    if (options_.clip == 0) return;
    // Squared lengths by bucket: corrections, then their sum; means, then theirs.
    lengths_ = room(2 * (weights_ + 1), sizeof(double));
    part_ = room(1);
    std::size_t most = 0;
    for (std::size_t b = 0; b < weights_; ++b)
      most = std::max(most, norm_scratch(ledgers_[b].count()));
    scratch_ = room(most, sizeof(double));
  }

  // Work of `now` after this sees what the side stream has done; and the other way.
  void before(Stream now) {
    ready_.record(side_.get());
    ready_.hold_back(now);
  }
  void after(Stream now) {
    moved_.record(now);
    moved_.hold_back(side_.get());
  }

  void run(const StreamLedger::End& end, Stream now) {
    const auto moves = [&](const StreamLedger& ledger) { return ledger.moves(end); };
    const auto message = [&](std::size_t b) {
      return end.closes ? pipeline_->message(b) : nullptr;
    };
    const bool any = std::ranges::any_of(ledgers_, moves);
    if (any) {
      before(now);
      for (std::size_t b = 0; b < ledgers_.size(); ++b) ledgers_[b].move(end, message(b), now);
      after(now);
    }
    if (any || end.closes) {
      for (std::size_t b = 0; b < ledgers_.size(); ++b) ledgers_[b].follow(end, message(b));
    }
    pending_ = false;
  }

  void start_round() {
    auto* const digests = digests_.as<std::uint64_t>();
    const bool compares = schedule_.compares();
    for (std::size_t b = 0; compares && b < ledgers_.size(); ++b) ledgers_[b].digest(digests + b);
    pipeline_->start(compares ? digests : nullptr, schedule_.steps());
    schedule_.close();
  }

  // Applies the oldest round. A correction that is made at once is made by the next move().
  void take_in() {
    const StreamPipeline::Taken taken = pipeline_->take();
    schedule_.take();
    for (std::size_t b = 0; b < ledgers_.size(); ++b)
      ledgers_[b].acknowledge(taken.mean[b], taken.own[b], taken.verdict);
    if (options_.clip > 0) clip(taken);
    pending_ = true;
  }

  // Clips the correction by its length over the whole model, so that it keeps its direction.
  void clip(const StreamPipeline::Taken& taken) {
    const Device device = link_.device;
    auto *const corrections = lengths_.as<double>(), *const means = corrections + weights_ + 1;
    for (std::size_t b = 0; b < weights_; ++b) {
      const auto norm = [&](float* values, double* out) {
        enqueue_norm({values, ledgers_[b].count(), DType::f32, device}, scratch_.as<double>(), out,
                     side_.get());
      };
      norm(ledgers_[b].due(), corrections + b);
      norm(taken.mean[b], means + b);
    }
    enqueue_sum(corrections, weights_, corrections + weights_, device, side_.get());
    enqueue_sum(means, weights_, means + weights_, device, side_.get());
    auto* const part = part_.as<float>();
    if (device.kind == Device::Kind::cpu)
      *part =
          static_cast<float>(ledger_clip(options_.clip, corrections[weights_], means[weights_]));
    else
      ledger_clip_cuda(options_.clip, corrections + weights_, means + weights_, part, side_.get());
    for (std::size_t b = 0; b < weights_; ++b) ledgers_[b].limit_correction(part);
  }

  std::string bad_parameter() const {
    for (const StreamLedger& ledger : ledgers_) {
      if (const std::string name = ledger.bad_parameter(); !name.empty()) return name;
    }
    return {};
  }

  const StreamLink link_;
  const DelayOptions options_;
  const std::size_t weights_;  // the number of ledgers of weights; those of moments follow
  Schedule schedule_;
  std::optional<DeviceScope> scope_;  // while this is constructed
  OwnStream side_;
  Event ready_, moved_;
  std::deque<StreamLedger> ledgers_;
  Buffer digests_, lengths_, scratch_, part_;
  std::vector<Buffer> aside_;  // own weights, while the anchor is shown
  bool pending_ = false;       // acknowledged, and no move() came after it
  std::unique_ptr<StreamPipeline> pipeline_;
};

StreamDelayedAverage::StreamDelayedAverage(const StreamLink& link,
                                           const std::vector<Bucket>& buckets,
                                           const std::vector<LedgerPieces>& weights,
                                           const Config& config, const DelayOptions& options,
                                           const std::vector<LedgerPieces>& moments)
    : impl_(std::make_unique<Impl>(link, buckets, weights, config, options, moments)) {}
StreamDelayedAverage::~StreamDelayedAverage() = default;

void StreamDelayedAverage::place(const std::vector<LedgerPieces>& weights,
                                 const std::vector<LedgerPieces>& moments, Stream now) {
  impl_->place(weights, moments, now);
}
void StreamDelayedAverage::expect_step() { impl_->expect_step(); }
void StreamDelayedAverage::finish_step(Stream now, bool take_part) {
  impl_->finish_step(now, take_part);
}
void StreamDelayedAverage::drain(Stream now) { impl_->drain(now); }
void StreamDelayedAverage::await_arrivals() { impl_->pipeline().await_arrivals(); }
const float* StreamDelayedAverage::anchor(std::size_t bucket, Stream now) {
  return impl_->anchor(bucket, now);
}
void StreamDelayedAverage::keep_off(Stream now) { impl_->keep_off(now); }
void StreamDelayedAverage::show_anchor(Stream now) { impl_->show_anchor(now); }
void StreamDelayedAverage::hide_anchor(Stream now) { impl_->hide_anchor(now); }
std::unique_lock<std::mutex> StreamDelayedAverage::hold() { return impl_->pipeline().hold(); }
std::uint64_t StreamDelayedAverage::delay() const { return impl_->schedule().delay(); }
std::uint64_t StreamDelayedAverage::steps() const { return impl_->schedule().steps(); }
std::uint64_t StreamDelayedAverage::in_flight() const { return impl_->schedule().in_flight(); }
Report StreamDelayedAverage::report() { return impl_->pipeline().report(); }
void StreamDelayedAverage::visit_state(StateVisitor& visitor, Stream now) {
  impl_->visit_state(visitor, now);
}
Stream StreamDelayedAverage::side() const { return impl_->side(); }

}  // namespace thinwire
