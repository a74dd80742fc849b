// link_state.cc: what a link is told and asked between steps: schemes, loss scale, state, reports.
// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "thinwire/exchange/replicas.h"
#include "thinwire/torch/link.h"
#include "thinwire/torch/state.h"

namespace thinwire::ddp {

void Link::follow_scale() {
  if (!scale_.defined() || !courier_) return;
  const double now = scale_.item<double>();
  if (last_scale_ != 0 && now != last_scale_) {
    const auto factor = static_cast<float>(now / last_scale_);
    Rescale rescale(factor);
    courier_->visit_state(rescale);
    for (auto& [name, values] : owed_)
      for (float& value : values) value *= factor;
  }
  last_scale_ = now;
}

void Link::set_scheme(const Config& config, const ExchangeOptions& options) {
  finish();
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

Config Link::scheme() const {
  const std::lock_guard lock(mutex_);
  return options_.config;
}

void Link::set_void_as_nan(bool on) {
  const std::lock_guard lock(mutex_);
  options_.void_as_nan = on;
}

void Link::set_scale(const at::Tensor& scale) {
  const std::lock_guard lock(mutex_);
  scale_ = scale;
}

State Link::saved() {
  if (!courier_) return loaded_;
  State state;
  StateSaver saver(state);
  courier_->visit_state(saver);
  for (const auto& [name, values] : owed_)
    state.insert_or_assign(name + "/v", StateEntry{Share::summed, values, 0, true});
  if (last_scale_ != 0) state[scale_entry] = {Share::replicated, {}, last_scale_, false};
  return state;
}

State Link::state() {
  finish();
  const std::lock_guard lock(mutex_);
  return saved();
}

Names Link::layout() const {
  const std::lock_guard lock(mutex_);
  return buckets_.empty() ? loaded_layout_ : names_of(buckets_);
}

void Link::load(State state, Names layout, std::optional<std::uint64_t> steps) {
  finish();
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

Report Link::report() const {
  const std::lock_guard lock(mutex_);
  return before_;
}

Step Link::last_step() const {
  const std::lock_guard lock(mutex_);
  return last_;
}

void Link::on_step(std::function<void(const Step&)> callback) {
  const std::lock_guard lock(mutex_);
  callback_ = std::move(callback);
}

void Link::check_replicas() {
  finish();
  const std::lock_guard lock(mutex_);
  std::vector<Replica> replicas;
  for (const auto& [name, tensor] : parameters_) {
    if (!tensor.defined() || !tensor.is_non_overlapping_and_dense()) continue;
    const auto bytes = static_cast<std::size_t>(tensor.nbytes());
    replicas.push_back({name, {static_cast<const std::byte*>(tensor.data_ptr()), bytes}});
  }
  thinwire::check_replicas(*wires_.group, replicas);
}

}  // namespace thinwire::ddp
