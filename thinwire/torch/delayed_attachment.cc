// delayed_attachment.cc: parameters in, a delayed average's step, parameters out.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/torch/delayed_attachment.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <c10/util/StringUtil.h>

#include "thinwire/core/error.h"
#include "thinwire/exchange/replicas.h"

namespace thinwire::ddp {
namespace {

std::vector<at::Tensor> parameters_of(const Cut& cut) {
  std::vector<at::Tensor> all;
  for (const auto& parameters : cut)
    for (const auto& [name, tensor] : parameters) all.push_back(tensor);
  return all;
}

}  // namespace

DelayedAttachment::DelayedAttachment(const Connections& connections, const Cut& cut,
                                     const Moments& moments, const Config& config,
                                     const DelayOptions& options)
    : connections_(connections), buckets_(buckets_of(cut)), parameters_(parameters_of(cut)) {
  if (!moments.empty() && moments.size() != parameters_.size())
    fail("rank ", connections.group->rank(), ": expected moments of ", parameters_.size(),
         " parameters, got ", moments.size());
  const auto make = in_streams() ? make_stream_late : make_late;
  late_ = make(connections, buckets_, parameters_, moments, config, options);
}

void DelayedAttachment::leave_anchor(const char* what) const {
  if (shown_)
    fail("rank ", connections_.group->rank(), ": ", what,
         " while the model holds the anchor; leave `with handle.anchor():` first");
}

// If somebody set weights before the first step, that would be an update of this worker, compressed
// and late. Later such a change counts as an update: clipped weights, for instance.
void DelayedAttachment::check_parameters() {
  std::size_t i = 0;
  for (const Bucket& bucket : buckets_) {
    const at::Tensor before = steps_ == 0 ? late_->weights(bucket.id) : at::Tensor();
    for (const Parameter& parameter : bucket.parameters) {
      const at::Tensor& tensor = parameters_[i++];
      if (tensor.scalar_type() != at::kFloat || tensor.device() != connections_.device ||
          tensor.sizes() != at::IntArrayRef(parameter.shape))
        fail("rank ", connections_.group->rank(), ": parameter '", parameter.name,
             "' has become a tensor of type ", tensor.toString(), " on ", tensor.device().str(),
             " and of shape ", c10::str(tensor.sizes()), " since attach(); expected float32 on ",
             connections_.device.str(), " of shape ", c10::str(at::IntArrayRef(parameter.shape)),
             ": change it back, detach(), and attach anew");
      if (before.defined() && !at::equal(slice_of(before, parameter).view(parameter.shape), tensor))
        fail("rank ", connections_.group->rank(), ": parameter '", parameter.name,
             "' has changed between attach() and the first step: load the model before attach(), "
             "or the handle's own state after it");
    }
  }
}

at::Tensor DelayedAttachment::begin_step(bool looks) {
  const std::lock_guard lock(mutex_);
  leave_anchor("a step");
  check_parameters();
  late_->expect_step();
  if (!looks) return {};
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : parameters_) {
    const at::Tensor& gradient = parameter.grad();
    if (!gradient.defined()) continue;
    const at::Tensor values = gradient.is_sparse() ? gradient._values() : gradient;
    if (values.numel() > 0) gradients.push_back(values);
  }
  return late_->unsound(gradients);
}

void DelayedAttachment::fill(const Moments& moments) {
  const std::lock_guard lock(mutex_);
  late_->fill(moments);
}

void DelayedAttachment::finish_step(const Moments& moments, const Skipped& skipped) {
  const std::lock_guard lock(mutex_);
  leave_anchor("a step");
  late_->finish_step(moments);
  ++steps_;
  count(skipped);
  if (in_streams()) return;  // nobody waits for a report
  const Report now = sums();
  last_ = {late_->steps(), std::get<bool>(skipped), combine(now, before_, -1)};
  before_ = now;
}

void DelayedAttachment::count(const Skipped& skipped) {
  const auto* const there = std::get_if<at::Tensor>(&skipped);
  if (there == nullptr) {
    skipped_ += std::get<bool>(skipped) ? 1 : 0;
    last_skipped_ = skipped;
    return;
  }
  const at::NoGradGuard no_grad;
  const at::Tensor one = there->detach().reshape({}).ne(0).to(at::kDouble);
  skipped_there_ = skipped_there_.defined() ? skipped_there_ + one : one;
  last_skipped_ = one;
}

void DelayedAttachment::drain(const Moments& moments) {
  const std::lock_guard lock(mutex_);
  leave_anchor("drain()");
  late_->drain(moments);
}

void DelayedAttachment::show_anchor() {
  const std::lock_guard lock(mutex_);
  leave_anchor("anchor()");
  late_->show_anchor();
  shown_ = true;
}

void DelayedAttachment::hide_anchor() {
  const std::lock_guard lock(mutex_);
  late_->hide_anchor();
  shown_ = false;
}

State DelayedAttachment::state(const Moments& moments) {
  const std::lock_guard lock(mutex_);
  leave_anchor("state_dict()");
  State state;
  StateSaver saver(state);
  late_->visit_state(saver, moments);
  return state;
}

void DelayedAttachment::load(const State& state, const Moments& moments) {
  const std::lock_guard lock(mutex_);
  leave_anchor("load_state_dict()");
  if (steps_ > 0)
    fail("rank ", connections_.group->rank(),
         ": load_state_dict() comes before the first step, this handle has taken ", steps_,
         "; detach it and attach anew");
  StateLoader loader(state);
  late_->visit_state(loader, moments);
}

void DelayedAttachment::average(const at::Tensor& values) {
  const std::lock_guard lock(mutex_);
  const auto hold = late_->hold();
  const at::Tensor here = values.cpu();  // values itself, if it is there
  const std::span<float> floats(here.data_ptr<float>(), static_cast<std::size_t>(here.numel()));
  connections_.group->all_reduce(std::as_writable_bytes(floats), DType::f32, ReduceOp::sum, {})
      .wait();
  for (float& value : floats) value /= static_cast<float>(connections_.group->size());
  if (!values.is_cpu()) values.copy_(here);
}

void DelayedAttachment::check_replicas(
    const std::vector<std::pair<std::string, at::Tensor>>& others) {
  const std::lock_guard lock(mutex_);
  std::vector<Replica> replicas;
  std::vector<at::Tensor> copies;  // in one piece, while they are looked at
  const auto add = [&](const std::string& name, const at::Tensor& tensor) {
    copies.push_back(tensor.detach().cpu().contiguous());
    replicas.push_back(
        {name,
         {static_cast<const std::byte*>(copies.back().const_data_ptr()), copies.back().nbytes()}});
  };
  for (const Bucket& bucket : buckets_) {
    const at::Tensor anchor = late_->anchor(bucket.id).cpu();
    for (const Parameter& parameter : bucket.parameters)
      add(parameter.name, slice_of(anchor, parameter));
  }
  for (const auto& [name, tensor] : others) add(name, tensor);
  const auto hold = late_->hold();
  thinwire::check_replicas(*connections_.group, replicas);
}

void DelayedAttachment::check_messages() {
  const std::lock_guard lock(mutex_);
  late_->hold();
}

std::uint64_t DelayedAttachment::steps() const {
  const std::lock_guard lock(mutex_);
  return late_->steps();
}

std::uint64_t DelayedAttachment::delay() const {
  const std::lock_guard lock(mutex_);
  return late_->delay();
}

std::uint64_t DelayedAttachment::in_flight() const {
  const std::lock_guard lock(mutex_);
  return late_->in_flight();
}

Report DelayedAttachment::sums() {
  Report report = late_->report();
  report.steps = steps_;
  report.skipped = skipped_;
  if (skipped_there_.defined())
    report.skipped += static_cast<std::uint64_t>(skipped_there_.item<double>());
  report.dense_bytes = 0;
  for (const Bucket& bucket : buckets_)
    report.dense_bytes += steps_ * bucket.elements() * sizeof(float);
  return report;
}

Report DelayedAttachment::report() {
  const std::lock_guard lock(mutex_);
  return sums();
}

std::uint64_t DelayedAttachment::messages() {
  const std::lock_guard lock(mutex_);
  return late_->report().steps;
}

Step DelayedAttachment::last_step() {
  const std::lock_guard lock(mutex_);
  if (!in_streams()) return last_;
  const Report now = sums();
  const auto* const there = std::get_if<at::Tensor>(&last_skipped_);
  const bool skipped = there ? there->item<double>() != 0 : std::get<bool>(last_skipped_);
  last_ = {late_->steps(), skipped, combine(now, before_, -1)};
  before_ = now;
  return last_;
}

}  // namespace thinwire::ddp
