// void_laws.h: what a skipped step may leave behind, as laws over a group: nothing in the memory of
// a rank whose gradient was bad, and never a training that keeps skipping.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "tests/laws.h"

namespace thinwire::testing {

// Spoils a rank's gradient.
using Poison = std::function<void(Model&)>;

inline void scale(Model& model, float factor) {
  for (auto& bucket : model) {
    for (float& value : bucket) value *= factor;
  }
}

inline void fill(Model& model, float value) {
  for (auto& bucket : model) std::fill(bucket.begin(), bucket.end(), value);
}

// Values of about 1e17 in all buckets, and one infinity in the last that is encoded.
inline void one_infinity(Model& model) {
  double most = 0;
  for (const auto& bucket : model) most = std::max(most, norm(bucket));
  scale(model, static_cast<float>(1e19 / most));
  model.back()[model.back().size() / 2] = std::numeric_limits<float>::infinity();
}

// A run of ordinary steps, with bad ones in the middle.
struct Outcome {
  double average = 0;         // the largest magnitude of an average, in the steps that count
  double state = 0;           // ... of what this rank keeps at the end
  std::uint64_t skipped = 0;  // ordinary steps after the bad ones that were skipped
  std::vector<bool> bad_skipped;
};

struct Course {
  std::vector<Poison> poisons;               // one per bad step
  std::function<bool(const Group&)> is_bad;  // the ranks that have them
  int grace = 0;                             // steps after the bad ones that do not count
};

inline double largest(std::span<const float> values) {
  double most = 0;
  for (const float value : values) {
    // Makes non-finite values larger than anything else.
    most = std::isfinite(value) ? std::max<double>(most, std::fabs(value)) : HUGE_VAL;
  }
  return most;
}

inline double largest_in_state(Exchange& exchange) {
  double most = 0;
  for (const auto& [name, entry] : state_of(exchange)) {
    // powersgd's Q is orthonormal, whatever the gradients.
    if (!name.ends_with("/q")) most = std::max(most, largest(entry.values));
  }
  return most;
}

inline Outcome run_course(Group& group, const std::vector<Config>& configs,
                          const ExchangeKind& kind, const Course& course) {
  const auto buckets = awkward_buckets();
  Exchange exchange(group, buckets, configs, {.kind = kind});
  Outcome outcome;
  const bool works = group.rank() < kind.workers(group.size());
  const auto step = [&](std::uint64_t number, const Poison* poison) {
    Model model = model_gradient(buckets, Shape::normal, seed_of(group, number));
    if (poison && works && course.is_bad(group)) (*poison)(model);
    const bool skipped = take_step(exchange, model, number).skipped;
    double most = 0;
    for (const auto& bucket : model) most = std::max(most, largest(bucket));
    return std::pair(skipped, most);
  };
  for (std::uint64_t number = 0; number < 4; ++number) step(number, nullptr);
  for (const Poison& poison : course.poisons)
    outcome.bad_skipped.push_back(step(77, &poison).first);
  for (std::uint64_t number = 4; number < 4 + 3 + static_cast<std::uint64_t>(course.grace);
       ++number) {
    const auto [skipped, most] = step(number, nullptr);
    outcome.skipped += skipped ? 1 : 0;
    if (number >= 4 + static_cast<std::uint64_t>(course.grace))
      outcome.average = std::max(outcome.average, most);
  }
  outcome.state = largest_in_state(exchange);
  return outcome;
}

// Averages and memory have the size that they would have without the bad steps.
inline void expect_ordinary(const Outcome& outcome, const Outcome& reference,
                            const std::string& what) {
  EXPECT_LE(outcome.average, 20 * reference.average) << what << ": an average";
  EXPECT_LE(outcome.state, 20 * reference.state) << what << ": memory";
}

// Law: nothing of a step stays in the memory of a rank whose gradient was not finite, in any
// bucket.
inline void law_nothing_stays(Group& group, const std::vector<Config>& configs,
                              const ExchangeKind& kind = {}) {
  const Outcome reference = run_course(group, configs, kind, {});
  const auto first = [](const Group& any) { return any.rank() == 0; };
  const auto all = [](const Group&) { return true; };
  for (const auto& is_bad : {std::function<bool(const Group&)>(first), {all}}) {
    const Outcome outcome = run_course(group, configs, kind, {{one_infinity}, is_bad, 0});
    const std::string what = configs.front().str() + " by " + kind.str();
    EXPECT_TRUE(outcome.bad_skipped[0]) << what;
    EXPECT_EQ(outcome.skipped, 0u) << what;
    expect_ordinary(outcome, reference, what);
  }
}

// Law: after gradients that are finite but overflow, on one rank or on all, the training recovers
// within three steps.
inline void law_recovers(Group& group, const std::vector<Config>& configs,
                         const ExchangeKind& kind = {}) {
  const Poison large = [](Model& model) { fill(model, 3e38f); };
  const Poison opposite = [](Model& model) { fill(model, -3e38f); };
  const Poison normal = [](Model& model) { scale(model, 1e37f); };
  const Poison medium = [](Model& model) { fill(model, 1e30f); };
  const Poison limit = [](Model& model) { fill(model, 1e27f); };
  const std::vector<std::vector<Poison>> courses = {
      {large}, {large, large}, {large, opposite}, {normal}, {medium, medium}};
  const Course quiet{{}, {}, 3};
  const Outcome reference = run_course(group, configs, kind, quiet);
  for (const bool everybody : {false, true}) {
    const auto is_bad = [&](const Group& any) { return everybody || any.rank() == 0; };
    for (std::size_t i = 0; i < courses.size(); ++i) {
      const Outcome outcome = run_course(group, configs, kind, {courses[i], is_bad, 3});
      const std::string what = configs.front().str() + " by " + kind.str() + ", course " +
                               std::to_string(i) + (everybody ? " on all" : " on one");
      EXPECT_EQ(outcome.skipped, 0u) << what;
      expect_ordinary(outcome, reference, what);
    }
    // Within the limit it is a gradient like any other: it is averaged, and never skipped.
    const Outcome outcome = run_course(group, configs, kind, {{limit, limit, limit}, is_bad, 3});
    EXPECT_EQ(outcome.skipped, 0u) << configs.front().str() << " by " << kind.str();
  }
}

// Law: a skipped step preserves the residual. The rank with the bad gradient keeps exactly that,
// and its momentum restarts; the others also keep their gradients.
inline void law_waiting_stays(Group& group, Config config, const ExchangeKind& kind = {}) {
  config = with(with(config, "momentum", "0"), "clip", "0");
  const auto buckets = awkward_buckets();
  Exchange exchange(group, buckets, config, {.kind = kind});
  for (std::uint64_t step = 0; step < 5; ++step) {
    Model model = model_gradient(buckets, Shape::normal, seed_of(group, step));
    take_step(exchange, model, step);
  }
  const State before = state_of(exchange);
  const bool bad = group.rank() == 0;
  Model model = model_gradient(buckets, Shape::normal, seed_of(group, 5));
  if (bad) model[1][4000] = std::numeric_limits<float>::quiet_NaN();
  const Model gradient = model;
  ASSERT_TRUE(take_step(exchange, model, 0).skipped);
  const State after = state_of(exchange);
  for (const Bucket& bucket : buckets) {
    for (const Parameter& parameter : bucket.parameters) {
      const auto found = after.find(parameter.name + "/v");
      if (found == after.end()) continue;
      for (std::size_t i = 0; i < parameter.count; ++i) {
        const float waited = before.at(found->first).values[i];
        const float g = gradient[bucket.id][parameter.offset + i];
        // Quantisers have rounded relative to their levels.
        ASSERT_NEAR(found->second.values[i], waited + (bad ? 0 : g),
                    1e-5 * (10 + std::fabs(waited)))
            << config.str() << " " << found->first << " " << i;
      }
    }
  }
  for (const auto& [name, entry] : after) {
    const bool owned = name.find("/owner/") != std::string::npos;
    if (!owned && (name.ends_with("/u") || name.ends_with("/m")) && bad) {
      ASSERT_EQ(largest(entry.values), 0) << config.str() << " " << name;
    } else if (name.ends_with("/q") || name.ends_with("/norms") || owned) {
      ASSERT_TRUE(same_bits(entry.values, before.at(name).values)) << config.str() << " " << name;
    }
  }
}

}  // namespace thinwire::testing
