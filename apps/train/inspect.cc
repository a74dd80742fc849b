// inspect.cc: `thinwire inspect --model`: trains as one worker and shows every gradient to every
// scheme.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <memory>
#include <set>

#include "apps/inspect_model.h"
#include "apps/train/learner.h"
#include "apps/train/optimizer.h"
#include "apps/verb.h"
#include "thinwire/comm/local.h"
#include "thinwire/core/error.h"
#include "thinwire/core/parallel.h"
#include "thinwire/exchange/exchange.h"
#include "thinwire/kernels/norm.h"

namespace thinwire::apps {
namespace {

using train::Learner;
using train::Settings;

// Plain SGD with momentum: the schemes look on, they do not steer.
Settings training_of(const ModelSettings& settings) {
  Settings training;
  training.model = settings.model;
  training.data = settings.data;
  training.steps = settings.steps;
  training.batch = settings.batch;
  training.sequence = settings.sequence;
  training.seed = settings.seed;
  training.rate = settings.rate;
  training.bucket_mb = settings.bucket_mb;
  check(training);
  return training;
}

// One scheme's worker in a group of its own, beside the training: its memory sees the gradients
// that it would see, its averages go nowhere.
class Onlooker {
 public:
  Onlooker(const Config& scheme, const std::vector<Bucket>& buckets)
      : group_(std::move(make_local_groups(1).front())), exchange_(*group_, buckets, scheme) {
    size_.scheme = scheme.str();
  }

  // Overwrites the gradients with what would have arrived.
  void take(std::vector<std::vector<float>>& gradients) {
    const std::uint64_t before = exchange_.report().payload_bytes;
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      exchange_.submit(static_cast<std::uint16_t>(i), gradients[i]);
    }
    exchange_.finish();
    size_.bytes.push_back(exchange_.report().payload_bytes - before);
    std::size_t sent = 0;
    for (const auto& average : gradients) {
      sent += average.size() -
              static_cast<std::size_t>(std::count(average.begin(), average.end(), 0.0f));
    }
    size_.sent.push_back(sent);
  }

  const WireSize& size() const { return size_; }

 private:
  std::unique_ptr<Group> group_;
  Exchange exchange_;
  WireSize size_;
};

class Inspector {
 public:
  Inspector(const ModelSettings& settings, const std::vector<Config>& schemes)
      : settings_(training_of(settings)),
        group_(std::move(make_local_groups(1).front())),
        learner_(settings_, *group_, {.threads = settings.threads}),
        optimizer_(settings_, learner_.buckets()) {
    for (const Config& scheme : schemes) {
      onlookers_.push_back(std::make_unique<Onlooker>(scheme, learner_.buckets()));
    }
    for (const Bucket& bucket : learner_.buckets()) copies_.emplace_back(bucket.elements());
  }

  Findings run() {
    for (std::uint64_t step = 0; step < settings_.steps; ++step) {
      progress("step " + std::to_string(step + 1) + " of " + std::to_string(settings_.steps));
      take_step(step);
    }
    progress("energy of the layers");
    Findings findings = energies();
    for (const auto& onlooker : onlookers_) findings.sizes.push_back(onlooker->size());
    findings.buckets = learner_.buckets().size();
    findings.loss = loss_;
    progress("");
    return findings;
  }

 private:
  using Spans = std::vector<std::span<const float>>;

  void take_step(std::uint64_t step) {
    loss_ = learner_.compute(
        step, [](std::uint16_t) {}, [](const char*, Learner::Time, Learner::Time) {});
    check_finite(step);
    for (const auto& onlooker : onlookers_) {
      for (std::size_t i = 0; i < copies_.size(); ++i) {
        std::ranges::copy(learner_.gradient(i), copies_[i].begin());
      }
      onlooker->take(copies_);
    }
    if (step + 1 == settings_.steps) return;  // the last gradient is looked at below
    const double rate = settings_.rates.at(step, settings_.steps, learner_.steps_per_epoch());
    for (const Bucket& bucket : learner_.buckets()) {
      optimizer_.step(bucket, static_cast<float>(rate), learner_.gradient(bucket.id),
                      learner_.weights(bucket.id));
    }
  }

  void check_finite(std::uint64_t step) {
    for (const Bucket& bucket : learner_.buckets()) {
      const std::span<const float> gradient = learner_.gradient(bucket.id);
      if (std::isfinite(squared_norm(gradient.data(), gradient.size()))) continue;
      throw BadInput("step " + std::to_string(step + 1) + ", bucket " + std::to_string(bucket.id) +
                     ": the gradient is not finite; give a smaller --lr than " +
                     std::to_string(settings_.rate));
    }
  }

  // Backward reached the last layer first.
  Findings energies() {
    Findings findings;
    Spans spans;
    const std::vector<Bucket>& buckets = learner_.buckets();
    for (std::size_t b = buckets.size(); b-- > 0;) {
      const std::vector<Parameter>& parameters = buckets[b].parameters;
      for (std::size_t p = parameters.size(); p-- > 0;) {
        const Parameter& parameter = parameters[p];
        spans.emplace_back(learner_.gradient(b).subspan(parameter.offset, parameter.count));
        findings.layers.push_back(
            {parameter.name, parameter.shape, energy_of(std::span(spans).last(1))});
      }
    }
    findings.whole = energy_of(spans);
    const auto shown = largest(findings.layers, most_layers);
    const std::set<std::size_t> apart(shown.begin(), shown.end());
    Spans rest;
    for (std::size_t i = 0; i < spans.size(); ++i) {
      if (!apart.contains(i)) rest.push_back(spans[i]);
    }
    findings.rest = energy_of(rest);
    return findings;
  }

  Settings settings_;
  std::unique_ptr<Group> group_;
  Learner learner_;
  train::Optimizer optimizer_;
  std::vector<std::unique_ptr<Onlooker>> onlookers_;
  std::vector<std::vector<float>> copies_;  // of the gradients, by bucket
  double loss_ = 0;
};

}  // namespace

void inspect_model(const ModelSettings& settings) {
  if (settings.threads > 0) set_threads(settings.threads);
  const std::vector<Config> schemes = schemes_of(settings);  // before any work, since it may refuse
  report(settings, Inspector(settings, schemes).run());
}

}  // namespace thinwire::apps
