// delayed_attachment.cc: parameters in, a delayed average's step, parameters out.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/torch/delayed_attachment.h"

#include <cmath>

#include <c10/util/StringUtil.h>

#include "thinwire/core/error.h"
#include "thinwire/exchange/replicas.h"
#include "thinwire/kernels/norm.h"

namespace thinwire::ddp {
namespace {

std::span<float> span_of(const at::Tensor& tensor) {
  return {tensor.data_ptr<float>(), static_cast<std::size_t>(tensor.numel())};
}

std::vector<at::Tensor> parameters_of(const Cut& cut) {
  std::vector<at::Tensor> all;
  for (const auto& parameters : cut)
    for (const auto& [name, tensor] : parameters) all.push_back(tensor);
  return all;
}

}  // namespace

DelayedAttachment::DelayedAttachment(std::shared_ptr<Group> group, const Cut& cut,
                                     const Moments& moments, const Config& config,
                                     const DelayOptions& options)
    : group_(std::move(group)),
      buckets_(buckets_of(cut)),
      parameters_(parameters_of(cut)),
      weights_(buckets_) {
  if (!moments.empty()) moments_.emplace(buckets_);
  take(moments);
  const Arrays averaged = moments_ ? moments_->arrays() : Arrays();
  delayed_.emplace(*group_, buckets_, weights_.arrays(), config, options, averaged);
}

void DelayedAttachment::take(const Moments& moments) {
  if (moments.size() != (moments_ ? parameters_.size() : 0))
    fail("rank ", group_->rank(), ": expected moments of ", moments_ ? parameters_.size() : 0,
         " parameters, got ", moments.size());
  weights_.take(parameters_);
  if (moments_) moments_->take(moments);
}

void DelayedAttachment::give(const Moments& moments) {
  weights_.give(parameters_);
  if (moments_) moments_->give(moments);
}

void DelayedAttachment::leave_anchor(const char* what) const {
  if (shown_)
    fail("rank ", group_->rank(), ": ", what,
         " while the model holds the anchor; leave `with handle.anchor():` first");
}

// If somebody set weights before the first step, that would be an update of this worker, compressed
// and late. Later such a change counts as an update: clipped weights, for instance.
void DelayedAttachment::check_parameters() const {
  std::size_t i = 0;
  for (const Bucket& bucket : buckets_)
    for (const Parameter& parameter : bucket.parameters) {
      const at::Tensor& tensor = parameters_[i++];
      if (tensor.scalar_type() != at::kFloat || !tensor.is_cpu() ||
          tensor.sizes() != at::IntArrayRef(parameter.shape))
        fail("rank ", group_->rank(), ": parameter '", parameter.name,
             "' has become a tensor of type ", tensor.toString(), " and shape ",
             c10::str(tensor.sizes()), " since attach(); expected float32 on the CPU of shape ",
             c10::str(at::IntArrayRef(parameter.shape)),
             ": change it back, detach(), and attach anew");
      if (steps_ == 0 && !weights_.holds(i - 1, tensor))
        fail("rank ", group_->rank(), ": parameter '", parameter.name,
             "' has changed between attach() and the first step: load the model before attach(), "
             "or the handle's own state after it");
    }
}

bool DelayedAttachment::finite() {
  const std::lock_guard lock(mutex_);
  leave_anchor("a step");
  check_parameters();
  double sum = 0;
  for (const at::Tensor& parameter : parameters_) {
    const at::Tensor& gradient = parameter.grad();
    if (!gradient.defined()) continue;
    const at::Tensor values = (gradient.is_sparse() ? gradient._values() : gradient).contiguous();
    sum += squared_norm(span_of(values).data(), span_of(values).size());
  }
  return std::isfinite(sum);
}

void DelayedAttachment::fill(const Moments& moments) {
  const std::lock_guard lock(mutex_);
  if (moments_) moments_->give(moments);
}

void DelayedAttachment::finish_step(const Moments& moments, bool skipped) {
  const std::lock_guard lock(mutex_);
  leave_anchor("a step");
  take(moments);
  delayed_->finish_step();
  give(moments);
  ++steps_;
  if (skipped) ++skipped_;
  const Report now = sums();
  last_ = {delayed_->steps(), skipped, combine(now, before_, -1)};
  before_ = now;
}

void DelayedAttachment::drain(const Moments& moments) {
  const std::lock_guard lock(mutex_);
  leave_anchor("drain()");
  take(moments);
  delayed_->drain();
  give(moments);
}

void DelayedAttachment::show_anchor() {
  const std::lock_guard lock(mutex_);
  leave_anchor("anchor()");
  weights_.take(parameters_);
  delayed_->swap_anchor();
  weights_.give(parameters_);
  delayed_->swap_anchor();
  shown_ = true;
}

void DelayedAttachment::hide_anchor() {
  const std::lock_guard lock(mutex_);
  weights_.give(parameters_);
  shown_ = false;
}

State DelayedAttachment::state(const Moments& moments) {
  const std::lock_guard lock(mutex_);
  leave_anchor("state_dict()");
  take(moments);
  State state;
  StateSaver saver(state);
  delayed_->visit_state(saver);
  return state;
}

void DelayedAttachment::load(const State& state, const Moments& moments) {
  const std::lock_guard lock(mutex_);
  leave_anchor("load_state_dict()");
  if (steps_ > 0)
    fail("rank ", group_->rank(),
         ": load_state_dict() comes before the first step, this handle has taken ", steps_,
         "; detach it and attach anew");
  StateLoader loader(state);
  delayed_->visit_state(loader);
  give(moments);
}

void DelayedAttachment::average(const at::Tensor& values) {
  const std::lock_guard lock(mutex_);
  const auto hold = delayed_->hold();
  const std::span<float> floats = span_of(values);
  group_->all_reduce(std::as_writable_bytes(floats), DType::f32, ReduceOp::sum, {}).wait();
  for (float& value : floats) value /= static_cast<float>(group_->size());
}

void DelayedAttachment::check_replicas(
    const std::vector<std::pair<std::string, at::Tensor>>& others) {
  const std::lock_guard lock(mutex_);
  std::vector<Replica> replicas;
  for (const Bucket& bucket : buckets_)
    for (const Parameter& parameter : bucket.parameters) {
      const auto anchor = delayed_->anchor(bucket.id).subspan(parameter.offset, parameter.count);
      replicas.push_back({parameter.name, std::as_bytes(anchor)});
    }
  std::vector<at::Tensor> copies;  // in one piece, while they are looked at
  for (const auto& [name, tensor] : others) {
    copies.push_back(tensor.detach().cpu().contiguous());
    replicas.push_back(
        {name,
         {static_cast<const std::byte*>(copies.back().const_data_ptr()), copies.back().nbytes()}});
  }
  const auto hold = delayed_->hold();
  thinwire::check_replicas(*group_, replicas);
}

void DelayedAttachment::check_messages() {
  const std::lock_guard lock(mutex_);
  delayed_->hold();
}

std::uint64_t DelayedAttachment::steps() const {
  const std::lock_guard lock(mutex_);
  return delayed_->steps();
}

std::uint64_t DelayedAttachment::delay() const {
  const std::lock_guard lock(mutex_);
  return delayed_->delay();
}

std::uint64_t DelayedAttachment::in_flight() const {
  const std::lock_guard lock(mutex_);
  return delayed_->in_flight();
}

Report DelayedAttachment::sums() const {
  Report report = delayed_->report();
  report.steps = steps_;
  report.skipped = skipped_;
  report.dense_bytes = 0;
  for (const Bucket& bucket : buckets_)
    report.dense_bytes += steps_ * bucket.elements() * sizeof(float);
  return report;
}

Report DelayedAttachment::report() const {
  const std::lock_guard lock(mutex_);
  return sums();
}

std::uint64_t DelayedAttachment::messages() const {
  const std::lock_guard lock(mutex_);
  return delayed_->report().steps;
}

Step DelayedAttachment::last_step() const {
  const std::lock_guard lock(mutex_);
  return last_;
}

}  // namespace thinwire::ddp
