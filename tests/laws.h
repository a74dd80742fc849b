// laws.h: what every scheme must guarantee, as functions over a group, so that each engine can be
// tested. The registry drives them: a new scheme is tested by all laws without being named here.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <ostream>
#include <vector>

#include "tests/gradients.h"
#include "tests/mean.h"
#include "thinwire/thinwire.h"

namespace thinwire {

// How GoogleTest shows a parameter.
inline void PrintTo(const Config& config, std::ostream* out) { *out << config.str(); }

}  // namespace thinwire

namespace thinwire::testing {

inline bool has_option(const Scheme& scheme, const std::string& name) {
  for (const Option& option : scheme.options) {
    if (option.name == name) return true;
  }
  return false;
}

// `config` with an option set, if the scheme has it.
inline Config with(Config config, const std::string& name, const std::string& value) {
  if (has_option(find_scheme(config.scheme), name)) config.options[name] = value;
  return config;
}

// Every scheme with its defaults and with each of its variants, sparse ones dense enough that small
// buckets have traffic. Under sanitizers, fuzz_exchange covers the variants.
inline std::vector<Config> law_configs() {
  std::vector<Config> configs;
  for (const Scheme* scheme : schemes()) {
    configs.push_back(with(Config{scheme->name, {}}, "density", "0.02"));
    if (sanitized) continue;
    for (const std::string& variant : scheme->variants)
      configs.push_back(Config::parse(scheme->name + ":" + variant));
  }
  return configs;
}

// A text reduced to the letters that a test name may have.
inline std::string test_name(std::string text) {
  for (char& c : text) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return text;
}

// How GoogleTest names the tests of a configuration.
inline std::string config_name(const ::testing::TestParamInfo<Config>& info) {
  return test_name(info.param.str());
}

// Awkward on purpose: an empty parameter, a single element, odd sizes, and one bucket larger than a
// kernel's block.
inline std::vector<Bucket> awkward_buckets() {
  return {
      Bucket{0, {{"head.bias", 0, 1, {}}}},
      Bucket{1,
             {{"conv.weight", 0, 4097, {17, 241}},
              {"conv.none", 4097, 0, {}},
              {"conv.bias", 4097, 17, {}}}},
      Bucket{2, {}},
      Bucket{3, {{"embed", 0, 999, {27, 37}}}},
  };
}

// A model's gradients: one flat array per bucket.
using Model = std::vector<std::vector<float>>;

inline Model model_gradient(const std::vector<Bucket>& buckets, Shape shape, std::uint64_t seed) {
  Model model;
  for (const Bucket& bucket : buckets)
    model.push_back(gradient(shape, bucket.elements(), seed * 1000 + bucket.id));
  return model;
}

// One step over all buckets, submitted in an order that differs between ranks and steps.
inline StepResult take_step(Exchange& exchange, Model& model, std::uint64_t shuffle) {
  const std::size_t buckets = model.size();
  for (std::size_t i = 0; i < buckets; ++i) {
    const std::size_t bucket = (i + shuffle) % buckets;
    exchange.submit(static_cast<std::uint16_t>(bucket), std::span(model[bucket]));
  }
  return exchange.finish();
}

inline std::uint64_t seed_of(const Group& group, std::uint64_t step) {
  return step * 100 + static_cast<std::uint64_t>(group.rank());
}

inline State state_of(Exchange& exchange) {
  State state;
  StateSaver saver(state);
  exchange.visit_state(saver);
  return state;
}

// Law: after every step all ranks hold the same bits, and these are the mean of what was sent
// (checked in every other step, because reading the memory may settle it). Servers take part with
// memory whose contents are ignored, and hold the averages too. What owners of stripes send is left
// to law_conservation.
inline void law_replicas(Group& group, const Config& config, Shape shape, int steps,
                         const ExchangeKind& kind = {}) {
  const auto buckets = awkward_buckets();
  Exchange exchange(group, buckets, config, {.kind = kind});
  Model weights = model_gradient(buckets, Shape::normal, 7);
  for (int step = 0; step < steps; ++step) {
    const auto number = static_cast<std::uint64_t>(step);
    const bool told = step % 2 == 1 && !kind.striped() && mean_can_be_told(config);
    const State before = told ? state_of(exchange) : State();
    const Model mine = model_gradient(buckets, shape, seed_of(group, number));
    Model model = mine;
    const StepResult result = take_step(exchange, model, seed_of(group, number));
    ASSERT_FALSE(result.skipped);
    ASSERT_EQ(result.step, number);
    const State after = told ? state_of(exchange) : State();
    for (const auto& bucket : model) {
      for (std::size_t i = 0; shape == Shape::zero && i < bucket.size(); ++i)
        ASSERT_EQ(bucket[i], 0.0f) << config.str();
    }
    for (std::size_t b = 0; told && b < model.size(); ++b)
      expect_mean(group, config, buckets[b], mine[b], model[b], before, after, number);
    std::vector<Replica> replicas;
    for (std::size_t b = 0; b < model.size(); ++b) {
      for (std::size_t i = 0; i < model[b].size(); ++i) weights[b][i] -= 0.1f * model[b][i];
      replicas.push_back({"average" + std::to_string(b), std::as_bytes(std::span(model[b]))});
      replicas.push_back({"weight" + std::to_string(b), std::as_bytes(std::span(weights[b]))});
    }
    ASSERT_NO_THROW(check_replicas(group, replicas)) << config.str() << " step " << step;
  }
}

// Subtracts from `moved` what an owner of stripes keeps of `parameter`. It belongs to averages, so
// it counts once per worker. Its name gives the stripe: "PARAMETER/owner/v" or
// "PARAMETER[from:to]/owner/v".
inline void subtract_owned(const State& state, const Parameter& parameter, int workers,
                           std::span<float> moved) {
  const std::string end = "/owner/v";
  for (const auto& [name, entry] : state) {
    if (!name.starts_with(parameter.name) || !name.ends_with(end)) continue;
    const std::string cut =
        name.substr(parameter.name.size(), name.size() - parameter.name.size() - end.size());
    if (!cut.empty() && cut[0] != '[') continue;  // another parameter's
    const std::size_t from = cut.empty() ? 0 : std::stoul(cut.substr(1));
    for (std::size_t i = 0; i < entry.values.size(); ++i)
      moved[from + i] -= static_cast<float>(workers) * entry.values[i];
  }
}

// Law: sent plus kept equals given. Momentum is off, so that the input is the gradient itself.
// Also: the residual is bounded as theory says. With a constant gradient, a scheme that sends
// nothing would grow by |g| per step, so boundedness is not vacuous.
inline void law_conservation(Group& group, Config config, Shape shape, int steps,
                             const ExchangeKind& kind = {}) {
  if (!keeps_residual(config)) return;
  config = with(with(config, "momentum", "0"), "clip", "0");
  const std::vector<Bucket> buckets = {
      Bucket{0, {{"a", 0, 301, {43, 7}}, {"b", 301, 200, {20, 10}}, {"bias", 501, 9, {}}}},
      Bucket{1, {{"c", 0, 77, {11, 7}}}}};
  Exchange exchange(group, buckets, config, {.kind = kind});
  const auto drift = model_gradient(buckets, shape, 5);
  std::vector<std::vector<double>> in, out;
  for (const Bucket& bucket : buckets) {
    in.emplace_back(bucket.elements());
    out.emplace_back(bucket.elements());
  }
  double largest_gradient = 0, largest_residual = 0;
  const int workers = kind.workers(group.size());
  const bool works = group.rank() < workers;
  for (int step = 0; step < steps; ++step) {
    Model model = model_gradient(buckets, shape, seed_of(group, static_cast<std::uint64_t>(step)));
    // Now and then one rank has a NaN: in all buckets, in the last, or in a single element. The
    // step is skipped. Nothing of that rank's gradients is kept, and the others' must not be lost.
    const bool void_step = step % 7 == 3, bad_rank = group.rank() == step % workers;
    const bool poisoned = void_step && bad_rank;
    double squared = 0;
    for (std::size_t b = 0; b < model.size(); ++b) {
      for (std::size_t i = 0; i < model[b].size(); ++i) {
        model[b][i] = 0.5f * model[b][i] + drift[b][i];
        if (!poisoned && works) in[b][i] += model[b][i];
      }
      squared += std::pow(norm(model[b]), 2);
    }
    if (poisoned) {
      const float nan = std::numeric_limits<float>::quiet_NaN();
      const int where = step / 7 % 4;
      if (where == 0) std::fill(model.front().begin(), model.front().end(), nan);
      if (where <= 1) std::fill(model.back().begin(), model.back().end(), nan);
      if (where == 2) model.back()[static_cast<std::size_t>(step) % model.back().size()] = nan;
      if (where == 3) model.front()[static_cast<std::size_t>(step) % model.front().size()] = nan;
    }
    largest_gradient = std::max(largest_gradient, std::sqrt(squared));
    ASSERT_EQ(take_step(exchange, model, 0).skipped, void_step);
    for (std::size_t b = 0; b < model.size(); ++b) {
      for (std::size_t i = 0; i < model[b].size(); ++i) out[b][i] += model[b][i];
    }
    if (step % 50 == 49) {
      squared = 0;
      for (auto& [name, entry] : state_of(exchange)) {
        if (name.ends_with("/v")) squared += std::pow(norm(entry.values), 2);
      }
      largest_residual = std::max(largest_residual, std::sqrt(squared));
    }
  }
  // Sum over ranks of (in - residual), against workers * the averages that came out.
  const State state = state_of(exchange);
  for (std::size_t b = 0; b < buckets.size(); ++b) {
    std::vector<float> moved(buckets[b].elements());
    for (const Parameter& parameter : buckets[b].parameters) {
      for (std::size_t i = 0; works && i < parameter.count; ++i) {
        const StateEntry& kept = state.at(parameter.name + "/v");
        moved[parameter.offset + i] =
            static_cast<float>(in[b][parameter.offset + i] - kept.values[i]);
      }
      subtract_owned(state, parameter, workers,
                     std::span(moved).subspan(parameter.offset, parameter.count));
    }
    group.all_reduce(std::as_writable_bytes(std::span(moved)), DType::f32, ReduceOp::sum, {})
        .wait();
    for (std::size_t i = 0; i < moved.size(); ++i) {
      const double expected = static_cast<double>(workers) * out[b][i];
      // Sums of halves round coarsely, which few steps do not average out.
      const double tolerance = 1e-5 * static_cast<double>(steps + 100) * (1 + std::abs(expected));
      ASSERT_NEAR(moved[i], expected, tolerance) << config.str() << " " << kind.str();
    }
  }
  // Error feedback with a compressor that keeps a share d of the energy: |residual| <= 2
  // sqrt(1-d)/d * |gradient|. Sparse schemes keep at least their density, minus what coarse values
  // lose. Quantisers keep more than the twentieth assumed here.
  const auto density =
      config.options.count("density") ? std::stod(config.options.at("density")) : 0.05;
  const double kept = 0.9 * density;
  EXPECT_LE(largest_residual, 2 * largest_gradient / kept) << config.str();
  EXPECT_LT(largest_residual, 0.5 * static_cast<double>(steps) * largest_gradient) << config.str();
}

// Law: stop, save, load into a new exchange, continue: the same bits as without the stop.
inline void law_resume(Group& group, const Config& config, const ExchangeKind& kind = {}) {
  const auto buckets = awkward_buckets();
  const auto run = [&](Exchange& exchange, std::uint64_t from, std::uint64_t to) {
    Model last;
    for (std::uint64_t step = from; step < to; ++step) {
      last = model_gradient(buckets, Shape::heavy, seed_of(group, step));
      take_step(exchange, last, 0);
    }
    return last;
  };
  Exchange straight(group, buckets, config, {.kind = kind});
  const Model expected = run(straight, 0, 20);
  std::vector<std::byte> saved;
  {
    Exchange first(group, buckets, config, {.kind = kind});
    run(first, 0, 10);
    saved = serialize(state_of(first));
  }
  Exchange second(group, buckets, config, {.kind = kind});
  State state;
  ASSERT_TRUE(deserialize(saved, state).ok());
  StateLoader loader(state);
  second.visit_state(loader);
  const Model resumed = run(second, 10, 20);
  for (std::size_t b = 0; b < buckets.size(); ++b)
    ASSERT_TRUE(same_bits(resumed[b], expected[b])) << config.str();
  ASSERT_EQ(serialize(state_of(second)), serialize(state_of(straight))) << config.str();
}

// Law: a NaN or Inf on one rank skips the step on all ranks, memory stays finite, and the next step
// is normal. What may remain of such a step: void_laws.h.
inline void law_nan(Group& group, const Config& config, const ExchangeKind& kind = {}) {
  const auto buckets = awkward_buckets();
  Exchange exchange(group, buckets, config, {.kind = kind});
  const float bad[] = {std::numeric_limits<float>::quiet_NaN(),
                       std::numeric_limits<float>::infinity(),
                       -std::numeric_limits<float>::infinity()};
  std::uint64_t skipped = 0;
  for (std::uint64_t step = 0; step < 8; ++step) {
    Model model = model_gradient(buckets, Shape::normal, seed_of(group, step));
    const bool poisoned = step % 2 == 1;
    if (poisoned && group.rank() == static_cast<int>(step / 2) % kind.workers(group.size())) {
      model[1][step % 3 == 0 ? 0 : model[1].size() - 1] = bad[step % 3];
    }
    const StepResult result = take_step(exchange, model, seed_of(group, step));
    ASSERT_EQ(result.skipped, poisoned) << config.str() << " step " << step;
    skipped += poisoned ? 1 : 0;
    for (const auto& bucket : model) {
      for (const float value : bucket) {
        ASSERT_TRUE(std::isfinite(value));
        if (poisoned) {
          ASSERT_EQ(value, 0.0f);
        }
      }
    }
    for (const auto& [name, entry] : state_of(exchange)) {
      for (const float value : entry.values)
        ASSERT_TRUE(std::isfinite(value)) << config.str() << " " << name;
    }
  }
  EXPECT_EQ(exchange.report().skipped, skipped);
  EXPECT_EQ(exchange.report().steps, 8u);
}

}  // namespace thinwire::testing
