// optimizer.cc: plain loops that a compiler vectorizes; optimizer_torch.cc has them for a device.
// SPDX-License-Identifier: Apache-2.0
#include "apps/train/optimizer.h"

#include <algorithm>
#include <string>

#include "apps/train/optimizer_torch.h"
#include "apps/train/placed.h"
#include "thinwire/compress/registry.h"

namespace thinwire::train {
namespace {

constexpr double usual_momentum = 0.9;

AdamRule adam_of(const Settings& settings) {
  AdamRule rule;
  rule.beta1 = settings.beta1.value_or(rule.beta1);
  rule.beta2 = settings.beta2.value_or(rule.beta2);
  rule.epsilon = settings.epsilon.value_or(rule.epsilon);
  rule.decay = settings.decay;
  rule.decoupled = settings.optimizer == "adamw";
  return rule;
}

template <bool nesterov>
void momentum_step(const SgdRule& rule, const float* __restrict average, float* __restrict w,
                   float* __restrict v, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const float d = average[i] + rule.decay * w[i];
    v[i] = rule.momentum * v[i] + d;
    w[i] -= rule.rate * (nesterov ? d + rule.momentum * v[i] : v[i]);
  }
}

void plain_step(const SgdRule& rule, const float* __restrict average, float* __restrict w,
                std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) w[i] -= rule.rate * (average[i] + rule.decay * w[i]);
}

}  // namespace

Optimizer::Optimizer(const Settings& settings, const std::vector<Bucket>& buckets, Device device)
    : device_(device), memory_(buckets.size()) {
  const auto room = [&](const Bucket& bucket) {
    return Buffer(place_on(device), bucket.elements() * sizeof(float), device);
  };
  if (settings.optimizer != "sgd") {
    adam_ = adam_of(settings);
    for (const Bucket& bucket : buckets) memory_[bucket.id] = {room(bucket), room(bucket)};
    return;
  }
  const Scheme& scheme = find_scheme(settings.config.scheme);
  inside_ = keeps_momentum(settings.config) && !settings.delayed;
  rule_.decay = static_cast<float>(settings.decay);
  rule_.momentum = static_cast<float>(settings.momentum.value_or(usual_momentum));
  rule_.nesterov = settings.nesterov;
  if (inside_) {
    // If the scheme averages momentum, weight decay gets the same momentum. A scheme without a
    // Nesterov form does not average (signum votes), so decay then acts on the weights directly.
    const bool averages =
        std::any_of(scheme.options.begin(), scheme.options.end(),
                    [](const Option& option) { return option.name == "nesterov"; });
    const Options options(settings.config, scheme.options);
    rule_.momentum = averages ? static_cast<float>(options.number_from("momentum", 0, 1)) : 0.0f;
    rule_.nesterov = averages && options.flag("nesterov");
  }
  const bool keeps = inside_ ? rule_.decay != 0 : rule_.momentum != 0;
  if (!keeps) return;
  for (const Bucket& bucket : buckets) memory_[bucket.id].first = room(bucket);
}

void Optimizer::step(const Bucket& bucket, float rate, std::span<const float> average,
                     std::span<float> weights) {
  auto& [first, second, updates] = memory_[bucket.id];
  auto* const kept = first.as<float>();
  rule_.rate = rate;
  if (adam_) {
    adam_step(*adam_, rate, ++updates, average.data(), weights.data(), kept, second.as<float>(),
              weights.size());
  } else if (inside_) {
    sgd_step(rule_, average.data(), weights.data(), kept, weights.size());
  } else if (kept == nullptr) {
    plain_step(rule_, average.data(), weights.data(), weights.size());
  } else if (rule_.nesterov) {
    momentum_step<true>(rule_, average.data(), weights.data(), kept, weights.size());
  } else {
    momentum_step<false>(rule_, average.data(), weights.data(), kept, weights.size());
  }
}

void Optimizer::enqueue_step(const Bucket& bucket, float rate, const TensorView& average,
                             const TensorView& weights) {
  auto& [first, second, updates] = memory_[bucket.id];
  rule_.rate = rate;
  if (adam_)
    torch_adam_step(*adam_, rate, ++updates, average, weights, view(first), view(second));
  else
    (inside_ ? torch_sgd_step : torch_momentum_step)(rule_, average, weights, view(first));
}

void Optimizer::visit_state(StateVisitor& visitor, const std::vector<Bucket>& buckets) {
  for (const Bucket& bucket : buckets) {
    const Memory& memory = memory_[bucket.id];
    if (adam_)
      visit_moments(visitor, bucket);
    else if (memory.first.size() != 0)
      visit_placed(visitor, bucket, inside_ ? "decay" : "velocity", view(memory.first),
                   Share::replicated);
  }
}

void Optimizer::visit_moments(StateVisitor& visitor, const Bucket& bucket) {
  auto& [first, second, updates] = memory_[bucket.id];
  visit_placed(visitor, bucket, "first_moment", view(first), Share::replicated);
  visit_placed(visitor, bucket, "second_moment", view(second), Share::replicated);
  auto count = static_cast<double>(updates);
  visitor.number("bucket" + std::to_string(bucket.id) + "/updates", count, Share::replicated);
  updates = static_cast<std::uint64_t>(count);
}

}  // namespace thinwire::train
