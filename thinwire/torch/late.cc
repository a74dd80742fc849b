// late.cc: parameters on the CPU: copied into flat arrays, averaged, and copied back.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/torch/late.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/scalar_tensor.h>

#include <cmath>
#include <optional>

#include "thinwire/delay/delayed.h"
#include "thinwire/kernels/norm.h"
#include "thinwire/torch/flat.h"

namespace thinwire::ddp {
namespace {

at::Tensor tensor_at(std::span<float> values) {
  return at::from_blob(values.data(), {static_cast<std::int64_t>(values.size())}, at::kFloat);
}

class HostLate final : public Late {
 public:
  HostLate(const Connections& connections, const std::vector<Bucket>& buckets,
           const std::vector<at::Tensor>& parameters, const Moments& moments, const Config& config,
           const DelayOptions& options)
      : group_(connections.group), parameters_(parameters), weights_(buckets) {
    if (!moments.empty()) moments_.emplace(buckets);
    take(moments);
    const Arrays averaged = moments_ ? moments_->arrays() : Arrays();
    delayed_.emplace(*group_, buckets, weights_.arrays(), config, options, averaged);
  }

  at::Tensor unsound(const std::vector<at::Tensor>& gradients) const override {
    double sum = 0;
    for (const at::Tensor& gradient : gradients) {
      const at::Tensor values = gradient.contiguous();
      sum += squared_norm(values.const_data_ptr<float>(), static_cast<std::size_t>(values.numel()));
    }
    return at::scalar_tensor(std::isfinite(sum) ? 0.0f : 1.0f);
  }

  at::Tensor weights(std::size_t bucket) const override {
    return tensor_at(weights_.arrays()[bucket]);
  }
  at::Tensor anchor(std::size_t bucket) override { return tensor_at(delayed_->anchor(bucket)); }

  void fill(const Moments& moments) override { moments_->give(moments); }
  void finish_step(const Moments& moments) override {
    take(moments);
    delayed_->finish_step();
    give(moments);
  }
  void drain(const Moments& moments) override {
    take(moments);
    delayed_->drain();
    give(moments);
  }
  void show_anchor() override {
    weights_.take(parameters_);
    delayed_->swap_anchor();
    weights_.give(parameters_);
    delayed_->swap_anchor();
  }
  void hide_anchor() override { weights_.give(parameters_); }
  void visit_state(StateVisitor& visitor, const Moments& moments) override {
    take(moments);
    delayed_->visit_state(visitor);
    give(moments);
  }

  std::unique_lock<std::mutex> hold() override { return delayed_->hold(); }
  std::uint64_t steps() const override { return delayed_->steps(); }
  std::uint64_t delay() const override { return delayed_->delay(); }
  std::uint64_t in_flight() const override { return delayed_->in_flight(); }
  Report report() override { return delayed_->report(); }

 private:
  void take(const Moments& moments) {
    weights_.take(parameters_);
    if (moments_) moments_->take(moments);
  }
  void give(const Moments& moments) const {
    weights_.give(parameters_);
    if (moments_) moments_->give(moments);
  }

  std::shared_ptr<Group> group_;
  std::vector<at::Tensor> parameters_;
  Flat weights_;
  std::optional<Flat> moments_;
  std::optional<DelayedAverage> delayed_;  // last: works on all of these
};

}  // namespace

std::unique_ptr<Late> make_late(const Connections& connections, const std::vector<Bucket>& buckets,
                                const std::vector<at::Tensor>& parameters, const Moments& moments,
                                const Config& config, const DelayOptions& options) {
  return std::make_unique<HostLate>(connections, buckets, parameters, moments, config, options);
}

}  // namespace thinwire::ddp
