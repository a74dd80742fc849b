// optimizer.cc: plain loops that a compiler vectorizes.
// SPDX-License-Identifier: Apache-2.0
#include "apps/train/optimizer.h"

#include <algorithm>
#include <string>

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

Optimizer::Optimizer(const Settings& settings, const std::vector<Bucket>& buckets) {
  if (settings.optimizer != "sgd") {
    adam_ = adam_of(settings);
    for (const Bucket& bucket : buckets)
      moments_.push_back(
          {std::vector<float>(bucket.elements()), std::vector<float>(bucket.elements())});
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
  for (const Bucket& bucket : buckets) memory_.emplace_back(keeps ? bucket.elements() : 0);
}

void Optimizer::step(const Bucket& bucket, float rate, std::span<const float> average,
                     std::span<float> weights) {
  if (adam_) {
    auto& [first, second, updates] = moments_[bucket.id];
    adam_step(*adam_, rate, ++updates, average.data(), weights.data(), first.data(), second.data(),
              weights.size());
    return;
  }
  std::vector<float>& memory = memory_[bucket.id];
  float* const kept = memory.empty() ? nullptr : memory.data();
  rule_.rate = rate;
  if (inside_) {
    sgd_step(rule_, average.data(), weights.data(), kept, weights.size());
  } else if (kept == nullptr) {
    plain_step(rule_, average.data(), weights.data(), weights.size());
  } else if (rule_.nesterov) {
    momentum_step<true>(rule_, average.data(), weights.data(), kept, weights.size());
  } else {
    momentum_step<false>(rule_, average.data(), weights.data(), kept, weights.size());
  }
}

void Optimizer::visit_state(StateVisitor& visitor, const std::vector<Bucket>& buckets) {
  for (const Bucket& bucket : buckets) {
    if (adam_) visit_moments(visitor, bucket);
    if (adam_ || memory_[bucket.id].empty()) continue;
    visit_by_parameter(visitor, bucket, inside_ ? "decay" : "velocity", memory_[bucket.id],
                       Share::replicated);
  }
}

void Optimizer::visit_moments(StateVisitor& visitor, const Bucket& bucket) {
  auto& [first, second, updates] = moments_[bucket.id];
  visit_by_parameter(visitor, bucket, "first_moment", first, Share::replicated);
  visit_by_parameter(visitor, bucket, "second_moment", second, Share::replicated);
  auto count = static_cast<double>(updates);
  visitor.number("bucket" + std::to_string(bucket.id) + "/updates", count, Share::replicated);
  updates = static_cast<std::uint64_t>(count);
}

}  // namespace thinwire::train
