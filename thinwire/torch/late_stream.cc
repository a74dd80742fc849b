// late_stream.cc: parameters on a device: averaged where they are, by work in the current stream
// and in streams of the average's own. Those never touch a tensor, so that torch's allocator need
// not know of them.
// SPDX-License-Identifier: Apache-2.0
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <limits>
#include <optional>

#include "thinwire/comm/c10d/device_stream.h"
#include "thinwire/delay/stream_delayed.h"
#include "thinwire/torch/late.h"
#include "thinwire/torch/places.h"

namespace thinwire::ddp {
namespace {

const std::vector<LedgerPieces>& none() {
  static const std::vector<LedgerPieces> pieces;
  return pieces;
}

class StreamLate final : public Late {
 public:
  StreamLate(const Connections& connections, const std::vector<Bucket>& buckets,
             const std::vector<at::Tensor>& parameters, const Moments& moments,
             const Config& config, const DelayOptions& options)
      : group_(connections.group),
        data_(connections.data),
        device_(connections.device),
        parameters_(parameters),
        buckets_(buckets),
        weights_(buckets, parameters) {
    if (!moments.empty()) moments_.emplace(buckets, moments);
    remember();
    wait();
    delayed_.emplace(
        StreamLink{*group_, data_.get(), torch_engine::device_of(device_), connections.timeout},
        buckets, weights_.pieces(), config, options, averaged());
  }

  // The largest magnitude of each gradient is NaN or infinite where an element is.
  at::Tensor unsound(const std::vector<at::Tensor>& gradients) const override {
    if (gradients.empty()) return at::zeros({}, at::TensorOptions().device(device_));
    const auto norms = at::_foreach_norm(gradients, std::numeric_limits<double>::infinity());
    return at::isfinite(at::stack(norms)).all().logical_not().to(at::kFloat);
  }

  at::Tensor weights(std::size_t bucket) const override { return before_[bucket]; }

  at::Tensor anchor(std::size_t bucket) override {
    auto* const values = const_cast<float*>(delayed_->anchor(bucket, now()));
    const auto count = static_cast<std::int64_t>(buckets_[bucket].elements());
    const at::Tensor anchor =
        at::from_blob(values, {count}, at::TensorOptions().dtype(at::kFloat).device(device_));
    const at::Tensor copy = anchor.clone();
    delayed_->keep_off(now());
    return copy;
  }

  void expect_step() override { delayed_->expect_step(); }
  void fill(const Moments& moments) override { moments_->fill(moments); }
  void finish_step(const Moments& moments) override {
    before_.clear();
    take(moments);
    delayed_->finish_step(now());
    give();
  }
  void drain(const Moments& moments) override {
    take(moments);
    delayed_->drain(now());
    give();
  }
  void show_anchor() override {
    take_weights();
    delayed_->show_anchor(now());
    weights_.give();
  }
  // What the parameters hold now is lost.
  void hide_anchor() override {
    take_weights();
    delayed_->hide_anchor(now());
    weights_.give();
  }
  void visit_state(StateVisitor& visitor, const Moments& moments) override {
    take(moments);
    delayed_->visit_state(visitor, now());
    give();
    if (!before_.empty()) remember();
  }

  std::unique_lock<std::mutex> hold() override { return delayed_->hold(); }
  Stream stream() const override { return delayed_->side(); }
  std::uint64_t steps() const override { return delayed_->steps(); }
  std::uint64_t delay() const override { return delayed_->delay(); }
  std::uint64_t in_flight() const override { return delayed_->in_flight(); }
  Report report() override { return delayed_->report(); }

 private:
  Stream now() const {
    if (device_.is_cpu()) return {};
    return {torch_engine::current_stream(device_).native_handle()};
  }
  void wait() const {
    if (!device_.is_cpu()) torch_engine::current_stream(device_).synchronize();
  }
  const std::vector<LedgerPieces>& averaged() const {
    return moments_ ? moments_->pieces() : none();
  }

  void remember() {
    const at::NoGradGuard no_grad;
    before_.clear();
    auto next = parameters_.begin();
    for (const Bucket& bucket : buckets_) {
      std::vector<at::Tensor> parts;
      for (std::size_t i = 0; i < bucket.parameters.size(); ++i)
        parts.push_back((next++)->reshape(-1));
      before_.push_back(at::cat(parts));
    }
  }

  void take_weights() {
    if (weights_.take(parameters_)) delayed_->place(weights_.pieces(), averaged(), now());
  }
  void take(const Moments& moments) {
    const bool moved = moments_ && moments_->take(moments);
    if (moved) delayed_->place(weights_.pieces(), averaged(), now());
    take_weights();
  }
  void give() {
    weights_.give();
    if (moments_) moments_->give();
  }

  std::shared_ptr<Group> group_;
  std::shared_ptr<StreamGroup> data_;
  c10::Device device_;
  std::vector<at::Tensor> parameters_;
  std::vector<Bucket> buckets_;
  std::vector<at::Tensor> before_;  // by bucket: weights(); none after the first step
  Places weights_;
  std::optional<Places> moments_;
  std::optional<StreamDelayedAverage> delayed_;  // last: works on all of these
};

}  // namespace

std::unique_ptr<Late> make_stream_late(const Connections& connections,
                                       const std::vector<Bucket>& buckets,
                                       const std::vector<at::Tensor>& parameters,
                                       const Moments& moments, const Config& config,
                                       const DelayOptions& options) {
  return std::make_unique<StreamLate>(connections, buckets, parameters, moments, config, options);
}

}  // namespace thinwire::ddp
