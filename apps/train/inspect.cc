// inspect.cc: `thinwire inspect --model`: trains as one worker and passes every gradient to every
// scheme.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <memory>
#include <set>

#include "apps/inspect_model.h"
#include "apps/train/learner.h"
#include "apps/train/models.h"
#include "apps/train/optimizer.h"
#include "apps/verb.h"
#include "thinwire/comm/local.h"
#include "thinwire/compress/registry.h"
#include "thinwire/core/error.h"
#include "thinwire/core/parallel.h"
#include "thinwire/exchange/exchange.h"
#include "thinwire/kernels/norm.h"

namespace thinwire::apps {
namespace {

using train::Learner;
using train::Settings;
using Gradient = std::vector<std::vector<float>>;  // by bucket

// Fills in the defaults. Without data this is a first look, and large models take few steps. Making
// an unknown model fails later, with its own error.
ModelSettings filled_in(ModelSettings settings) {
  const auto& known = train::models();
  const auto found = std::find_if(known.begin(), known.end(), [&](const train::ModelInfo& info) {
    return info.name == settings.model;
  });
  const bool large = found != known.end() && found->large && settings.data.empty();
  if (settings.data.empty()) settings.data = found != known.end() ? found->data : "synthetic";
  if (settings.steps == 0) settings.steps = large ? 4 : 20;
  if (settings.batch == 0) settings.batch = large ? 4 : 32;
  return settings;
}

// Plain SGD with momentum. The schemes only observe; they do not affect the training.
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

// A loss of energy that does not affect training, such as that of bf16.
constexpr double rounding = 1e-4;

// One scheme's worker in its own group, beside the training. Its memory sees the gradients that it
// would see; its averages are not used.
class Onlooker {
 public:
  Onlooker(const Config& config, const std::vector<Bucket>& buckets)
      : group_(std::move(make_local_groups(1).front())),
        exchange_(*group_, buckets, config),
        buckets_(buckets.size()) {
    size_.scheme = config.str();
    const Scheme& scheme = find_scheme(config.scheme);
    const auto feedback = config.options.find("feedback");
    const bool keeps =
        scheme.feedback && (feedback == config.options.end() || feedback->second != "off");
    size_.candidate.reducible = scheme.reducible;
    size_.candidate.loses = scheme.biased && !keeps;
  }

  void take(const Gradient& gradient) {
    Gradient arrived = gradient;
    const std::uint64_t before = exchange_.report().payload_bytes;
    for (std::size_t i = 0; i < arrived.size(); ++i)
      exchange_.submit(static_cast<std::uint16_t>(i), arrived[i]);
    exchange_.finish();
    if (size_.bytes.empty()) {
      size_.candidate.kept = squared_cosine(gradient, arrived);
      if (size_.candidate.kept > 1 - rounding) size_.candidate.loses = false;
    }
    size_.bytes.push_back(exchange_.report().payload_bytes - before);
    std::size_t sent = 0;
    for (const auto& average : arrived) {
      sent += average.size() -
              static_cast<std::size_t>(std::count(average.begin(), average.end(), 0.0f));
    }
    size_.sent.push_back(sent);
  }

  WireSize size() {
    const Report report = exchange_.report();
    const auto steps = static_cast<double>(size_.bytes.size());
    Candidate& candidate = size_.candidate;
    candidate.encode_seconds = report.encode_seconds / steps;
    candidate.decode_seconds = report.decode_seconds / steps;
    const auto buckets = static_cast<double>(buckets_);
    candidate.collectives =
        std::max(1.0, static_cast<double>(report.traffic.collectives) / steps / buckets);
    return size_;
  }

 private:
  static double squared_cosine(const Gradient& a, const Gradient& b) {
    double product = 0, ours = 0, theirs = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
      for (std::size_t k = 0; k < a[i].size(); ++k) product += double{a[i][k]} * double{b[i][k]};
      ours += squared_norm(a[i].data(), a[i].size());
      theirs += squared_norm(b[i].data(), b[i].size());
    }
    if (ours == 0 || theirs == 0) return 0;
    return std::clamp(product * product / (ours * theirs), 0.0, 1.0);
  }

  std::unique_ptr<Group> group_;
  Exchange exchange_;
  std::size_t buckets_;
  WireSize size_;
};

class Inspector {
 public:
  Inspector(const ModelSettings& settings, const std::vector<Config>& schemes)
      : asked_(filled_in(settings)),
        schemes_(schemes),
        settings_(training_of(asked_)),
        group_(std::move(make_local_groups(1).front())),
        learner_(settings_, *group_, {.threads = settings.threads}, train::Seat::host),
        optimizer_(settings_, learner_.buckets()),
        keeps_gradients_(settings_.steps < schemes.size()) {
    if (keeps_gradients_) return;
    for (const Config& scheme : schemes)
      onlookers_.push_back(std::make_unique<Onlooker>(scheme, learner_.buckets()));
  }

  // With a large model, the memory of all schemes, or the gradients of all steps, would fill the
  // machine. Keeps whichever is smaller.
  Findings run() {
    for (std::uint64_t step = 0; step < settings_.steps; ++step) {
      progress("step " + std::to_string(step + 1) + " of " + std::to_string(settings_.steps));
      take_step(step);
    }
    progress("energy of the layers");
    Findings findings = energies();
    for (const auto& onlooker : onlookers_) findings.sizes.push_back(onlooker->size());
    if (keeps_gradients_) {
      for (const Config& scheme : schemes_) findings.sizes.push_back(size_of(scheme));
    }
    findings.used = asked_;
    findings.buckets = learner_.buckets().size();
    findings.loss = loss_;
    progress("");
    return findings;
  }

 private:
  using Spans = std::vector<std::span<const float>>;

  void take_step(std::uint64_t step) {
    const auto nothing = [](const char*, Learner::Time, Learner::Time) {};
    loss_ = learner_
                .compute(
                    step, [](std::uint16_t) {}, nothing)
                .loss;
    check_finite(step);
    Gradient gradient;
    for (std::size_t i = 0; i < learner_.buckets().size(); ++i) {
      const std::span<const float> values = learner_.gradient(i);
      gradient.emplace_back(values.begin(), values.end());
    }
    for (const auto& onlooker : onlookers_) onlooker->take(gradient);
    if (keeps_gradients_) gradients_.push_back(std::move(gradient));
    if (step + 1 == settings_.steps) return;  // the last gradient is inspected below
    const double rate = settings_.rates.at(step, settings_.steps, learner_.steps_per_epoch());
    for (const Bucket& bucket : learner_.buckets()) {
      optimizer_.step(bucket, static_cast<float>(rate), learner_.gradient(bucket.id),
                      learner_.weights(bucket.id));
    }
  }

  WireSize size_of(const Config& scheme) {
    progress("scheme " + scheme.str());
    Onlooker onlooker(scheme, learner_.buckets());
    for (const Gradient& gradient : gradients_) onlooker.take(gradient);
    return onlooker.size();
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

  // Layers in order of forward: backward reached the last layer first.
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

  const ModelSettings asked_;
  const std::vector<Config> schemes_;
  Settings settings_;
  std::unique_ptr<Group> group_;
  Learner learner_;
  train::Optimizer optimizer_;
  const bool keeps_gradients_;
  std::vector<Gradient> gradients_;                   // by step, or
  std::vector<std::unique_ptr<Onlooker>> onlookers_;  // by scheme
  double loss_ = 0;
};

}  // namespace

void inspect_model(const ModelSettings& settings) {
  if (settings.threads > 0) set_threads(settings.threads);
  const std::vector<Config> schemes = schemes_of(settings);  // before any work: it may throw
  report(Inspector(settings, schemes).run());
}

}  // namespace thinwire::apps
