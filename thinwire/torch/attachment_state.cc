// attachment_state.cc: calls between steps: schemes, loss scale, state, reports.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "thinwire/exchange/replicas.h"
#include "thinwire/torch/attachment.h"
#include "thinwire/torch/state.h"

namespace thinwire::ddp {

void Attachment::follow_scale() {
  if (!scale_.defined() || !courier_) return;
  const double now = scale_now();
  if (last_scale_ != 0 && now != last_scale_) {
    const auto factor = static_cast<float>(now / last_scale_);
    Rescale rescale(factor);
    courier_->visit_state(rescale);
    for (auto& [name, values] : owed_)
      for (float& value : values) value *= factor;
  }
  last_scale_ = now;
}

// Memory must have the scale of the coming gradients, so the exact value is needed here. On a
// device it is known without waiting for the running backward only if it was noted before and has
// not changed since, which the tensor's version tells.
double Attachment::scale_now() {
  const bool noted = noted_scale_ && noted_version_ == scale_._version();
  return noted ? noted_scale_->value() : scale_.item<double>();
}

void Attachment::note_scale() {
  const std::lock_guard lock(mutex_);
  if (!scale_.defined() || scale_.is_cpu()) return;
  if (!noted_scale_) noted_scale_.emplace(scale_.device());
  noted_scale_->take(scale_);
  noted_version_ = static_cast<std::uint32_t>(scale_._version());
}

void Attachment::on_begin(std::function<Factors()> ask) {
  const std::lock_guard lock(mutex_);
  ask_ = std::move(ask);
}

// Without the lock: the answer comes from Python, where a thread that waits for our lock may hold
// the GIL.
void Attachment::ask_factors() {
  std::function<Factors()> ask;
  {
    const std::lock_guard lock(mutex_);
    ask = ask_;
  }
  Factors factors;
  if (ask) factors = ask();
  const std::lock_guard lock(mutex_);
  factors_ = std::move(factors);
}

void Attachment::apply_factors() {
  if (factors_.empty()) return;
  Multiply multiply(factors_);
  courier_->visit_state(multiply);
  factors_.clear();
}

// On a device the host waits for the answer, so it looks only in steps 8, 64, 512, ...
bool Attachment::samples(c10::Device device) const {
  if (device.is_cpu()) return true;
  const std::uint64_t step = before_.steps + 1;
  return step >= 8 && std::has_single_bit(step) && std::countr_zero(step) % 3 == 0;
}

// The first element that is not 0: sparse averages have few of them. The search is bounded, and in
// the first bucket only.
void Attachment::sample(const std::vector<at::Tensor>& gradients) {
  constexpr std::size_t most = std::size_t{1} << 14;
  sample_ = {};
  if (gradients.empty() || seen_.empty() || !samples(gradients[0].device())) return;
  std::size_t at = 0;
  const std::size_t end = std::min(most, seen_[0].elements());
  const at::Tensor part =
      gradients[0].narrow(0, 0, static_cast<std::int64_t>(end)).to(at::kCPU, at::kFloat);
  const auto* const data = part.const_data_ptr<float>();
  while (at < end && (data[at] == 0 || !std::isfinite(data[at]))) ++at;
  if (at == end) return;
  for (std::size_t i = 0; i < seen_[0].parameters.size(); ++i) {
    const Parameter& one = seen_[0].parameters[i];
    if (at - one.offset >= one.count) continue;
    sample_ = {parameters_[index_.at(identities_[0][i])].second, at - one.offset, data[at]};
  }
}

double Attachment::share_kept() const {
  const std::lock_guard lock(mutex_);
  if (!sample_.parameter.defined()) return 1;
  const at::Tensor gradient = sample_.parameter.grad();
  if (!gradient.defined() || gradient.is_sparse() || !gradient.is_floating_point() ||
      !gradient.is_non_overlapping_and_dense() || gradient.strides() != sample_.parameter.strides())
    return 1;
  const auto place = static_cast<std::int64_t>(sample_.at);
  return gradient.as_strided({1}, {1}, gradient.storage_offset() + place).item<double>() /
         static_cast<double>(sample_.average);
}

void Attachment::set_scheme(const Config& config, const ExchangeOptions& options) {
  settle();
  const std::lock_guard lock(mutex_);
  if (courier_ && config.scheme != options_.config.scheme) {
    // A scheme's own schedule (warm-up) counts from its first step.
    State state = saved();
    state.erase("exchange/step");
    retire();
    loaded_ = std::move(state);
  }
  options_.config = config;
  options_.exchange = options;
  renewed_ = true;
}

void Attachment::check_scheme(const Config& config, const ExchangeOptions& options) const {
  check_courier(connections_, config, options);
}

Config Attachment::scheme() const {
  const std::lock_guard lock(mutex_);
  return options_.config;
}

void Attachment::set_void_as_nan(bool on) {
  const std::lock_guard lock(mutex_);
  options_.void_as_nan = on;
}

void Attachment::set_scale(const at::Tensor& scale) {
  const std::lock_guard lock(mutex_);
  scale_ = scale;
}

State Attachment::saved() {
  if (!courier_) return loaded_;
  State state;
  StateSaver saver(state);
  courier_->visit_state(saver);
  for (const auto& [name, values] : owed_)
    state.insert_or_assign(name + "/v", StateEntry{Share::summed, values, 0, true});
  orders_.by_index(state);
  if (last_scale_ != 0) state[scale_entry] = {Share::replicated, {}, last_scale_, false};
  return state;
}

State Attachment::state() {
  settle();
  const std::lock_guard lock(mutex_);
  return saved();
}

Names Attachment::layout() const {
  const std::lock_guard lock(mutex_);
  return buckets_.empty() ? loaded_layout_ : names_of(buckets_);
}

void Attachment::load(State state, Names layout, std::optional<std::uint64_t> steps) {
  settle();
  const std::lock_guard lock(mutex_);
  retire();
  buckets_.clear();
  owed_.clear();
  loaded_ = std::move(state);
  loaded_layout_ = std::move(layout);
  seen_.clear();
  staged_ = 0;
  settled_ = false;
  last_scale_ = 0;
  if (!steps) return;
  last_.number = *steps;
  earlier_ = *steps - before_.steps;  // wraps for an earlier state, and back with the next sum
}

Report Attachment::report() {
  settle();
  const std::lock_guard lock(mutex_);
  return before_;
}

Step Attachment::last_step() {
  settle();
  const std::lock_guard lock(mutex_);
  return last_;
}

std::uint64_t Attachment::taken() const {
  const std::lock_guard lock(mutex_);
  return before_.steps + (open_ ? 1 : 0);
}

std::uint64_t Attachment::steps() const {
  const std::lock_guard lock(mutex_);
  return last_.number + (open_ ? 1 : 0);
}

void Attachment::on_step(std::function<void(const Step&)> callback) {
  const std::lock_guard lock(mutex_);
  callback_ = std::move(callback);
}

Stream Attachment::stream() const {
  const std::lock_guard lock(mutex_);
  return courier_ ? courier_->stream() : Stream{};
}

void Attachment::check_replicas() {
  settle();
  const std::lock_guard lock(mutex_);
  std::vector<Replica> replicas;
  std::vector<at::Tensor> copies;  // of parameters on a device
  for (const auto& [name, tensor] : parameters_) {
    if (!tensor.defined() || !tensor.is_non_overlapping_and_dense()) continue;
    copies.push_back(tensor.detach().cpu());
    const auto bytes = static_cast<std::size_t>(tensor.nbytes());
    replicas.push_back({name, {static_cast<const std::byte*>(copies.back().data_ptr()), bytes}});
  }
  thinwire::check_replicas(*connections_.group, replicas);
}

}  // namespace thinwire::ddp
