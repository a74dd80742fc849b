// exchange_plan.h: derives a training from bytes, for fuzz_exchange.cc. Equal bytes
// give equal plans.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "fuzz/fuzz.h"
#include "thinwire/core/random.h"
#include "thinwire/thinwire.h"

namespace thinwire::fuzz {

using Model = std::vector<std::vector<float>>;  // an array per bucket

enum class Content : std::uint8_t { ordinary, zeros, constant, tiny, large, nan, infinity, count };
enum class Fault : std::uint8_t { none, damage, leave };

struct Step {
  Content content = Content::ordinary;
  Fault fault = Fault::none;
  int rank = 0;  // rank of the fault, or of the non-finite value
  std::uint32_t seed = 0;
};

struct Plan {
  Config config;
  ExchangeOptions options;
  std::vector<Bucket> buckets;
  std::vector<Step> steps;
  int ranks = 1, later_ranks = 1;  // before and after the step `change_at`
  std::size_t change_at = 0, resume_at = 0;
  bool conserves = false;  // sent + kept = given
};

// Finite gradients above this may overflow sums and squares; such steps may be skipped.
inline constexpr float large = 1e18f;

inline int workers_of(const Plan& plan, int ranks) { return plan.options.kind.workers(ranks); }

inline bool has_option(const Config& config, const std::string& name) {
  const auto& options = find_scheme(config.scheme).options;
  return std::ranges::any_of(options, [&](const Option& option) { return option.name == name; });
}

inline void set_option(Config& config, const std::string& name, const std::string& value) {
  if (has_option(config, name)) config.options[name] = value;
}

// Any option of the scheme that accepts the drawn value.
inline void read_option(Input& input, Config& config) {
  constexpr std::array values = {
      "0",      "1",     "2",        "0.5",        "64",       "on",    "off",    "max",   "sum",
      "gather", "f32",   "f16",      "bf16",       "log8",     "log4",  "sign",   "exact", "layer",
      "gap",    "local", "previous", "elias_fano", "smallest", "coded", "random", "bucket"};
  const auto& options = find_scheme(config.scheme).options;
  const auto which = input.take<std::uint8_t>(), value = input.take<std::uint8_t>();
  if (options.empty()) return;
  Config tried = config;
  tried.options[options[which % options.size()].name] = values[value % values.size()];
  try {
    make_compressor(tried, Bucket::single(0, "probe", 64), {});
    config = tried;
  } catch (const Error&) {
    // The option does not accept that value.
  }
}

// A scheme, one of its variants or its default, and some of its options.
inline Config read_config(Input& input) {
  const auto& all = schemes();
  const Scheme& scheme = *all[input.take<std::uint8_t>() % all.size()];
  const std::size_t variant = input.take<std::uint8_t>() % (scheme.variants.size() + 1);
  Config config =
      Config::parse(variant == 0 ? scheme.name : scheme.name + ":" + scheme.variants[variant - 1]);
  const auto choices = input.take<std::uint8_t>();
  constexpr std::array densities = {"", "0.02", "0.3", "1"};
  constexpr std::array memories = {"", "none", "residual", "momentum"};
  if (choices % 4 != 0) set_option(config, "density", densities[choices % 4]);
  if (choices / 4 % 4 != 0) set_option(config, "memory", memories[choices / 4 % 4]);
  if (choices / 16 % 2 != 0) set_option(config, "warmup", "2");
  if (choices / 32 % 2 != 0) set_option(config, "nesterov", "on");
  if (choices / 64 % 4 != 0) {  // the input is the gradient itself, so conservation can be checked
    set_option(config, "momentum", "0");
    set_option(config, "clip", "0");
  }
  for (int i = 0; i < 2; ++i) read_option(input, config);
  return config;
}

inline ExchangeOptions read_options(Input& input) {
  constexpr std::array kinds = {"auto", "auto", "split", "server:1",
                                "split,second=topk:density=0.3"};
  constexpr std::array<std::size_t, 4> fused = {0, 0, 64, 4096};
  ExchangeOptions options;
  options.kind = ExchangeKind::parse(kinds[input.take<std::uint8_t>() % kinds.size()]);
  options.fuse_bytes = fused[input.take<std::uint8_t>() % fused.size()];
  return options;
}

inline std::vector<Bucket> read_buckets(Input& input) {
  constexpr std::array<std::size_t, 8> sizes = {0, 1, 7, 63, 64, 65, 130, 257};
  const auto shape = input.take<std::uint8_t>();
  std::vector<Bucket> buckets(shape % 3 + 1u);
  for (std::size_t b = 0; b < buckets.size(); ++b) {
    buckets[b].id = static_cast<std::uint16_t>(b);
    for (int p = 0; p <= shape / 3 % 3; ++p) {
      const auto size = input.take<std::uint8_t>();
      Parameter parameter{"p" + std::to_string(b) + "." + std::to_string(p),
                          buckets[b].elements(),
                          sizes[size % sizes.size()],
                          {}};
      if (const auto rows = size / sizes.size() % 4; rows > 1) {  // a matrix with this many rows
        parameter.count = parameter.count * rows;
        parameter.shape = {static_cast<std::int64_t>(rows),
                           static_cast<std::int64_t>(parameter.count / rows)};
      }
      buckets[b].parameters.push_back(std::move(parameter));
    }
  }
  return buckets;
}

inline Step read_step(Input& input) {
  const auto kind = input.take<std::uint8_t>();
  Step step;
  step.content = static_cast<Content>(kind % static_cast<unsigned>(Content::count));
  step.fault = kind < 240 ? Fault::none : kind % 2 == 0 ? Fault::damage : Fault::leave;
  step.rank = input.take<std::uint8_t>() % 4;
  step.seed = input.take<std::uint16_t>();
  return step;
}

// The rounding of a sum of halves in transit is in no rank's residual.
inline bool conserves(const Plan& plan) {
  const auto value = [&](const char* name) {
    const auto found = plan.config.options.find(name);
    return found == plan.config.options.end() ? std::string() : found->second;
  };
  const bool still = !has_option(plan.config, "momentum") || value("momentum") == "0";
  const bool whole = value("clip").empty() || value("clip") == "0";
  const bool exact =
      plan.config.scheme != "csc" || value("values").empty() || value("values") == "f32";
  return still && whole && exact && keeps_residual(plan.config) &&
         (!plan.options.kind.striped() ||
          keeps_residual(second_of(plan.options.kind, plan.config)));
}

// u8 scheme, u8 variant, u8 options, twice u8 option and u8 value, u8 exchange, u8 fusion, u8
// ranks, u8 change, u8 resume, u8 shape, u8 per parameter, then four bytes per step. Throws an
// Error if scheme and exchange clash.
inline Plan read_plan(Input input) {
  Plan plan;
  plan.config = read_config(input);
  plan.options = read_options(input);
  const auto ranks = input.take<std::uint8_t>(), change = input.take<std::uint8_t>();
  const auto resume = input.take<std::uint8_t>();
  plan.ranks = ranks % 4 + 1;
  plan.later_ranks = ranks / 4 % 4 + 1;
  plan.buckets = read_buckets(input);
  check_fit(plan.options.kind, plan.config);
  check_fit(plan.options.kind, std::min(plan.ranks, plan.later_ranks));
  while (!input.empty() && plan.steps.size() < 12) plan.steps.push_back(read_step(input));
  const std::size_t steps = plan.steps.size();
  plan.change_at = change % 2 == 0 ? steps : change / 2 % (steps + 1);
  if (plan.change_at == 0) plan.change_at = steps;
  plan.resume_at = resume % (steps + 1);
  plan.conserves = conserves(plan);
  return plan;
}

// This rank's gradient in a step. A server's is memory that nobody reads.
inline Model gradient_of(const Plan& plan, std::size_t number, int rank) {
  const Step& step = plan.steps[number];
  constexpr std::array scales = {1.0f, 0.0f, 0.0f, 1e-30f, large, 1.0f, 1.0f};
  const float scale = scales[static_cast<std::size_t>(step.content)];
  Model model;
  for (const Bucket& bucket : plan.buckets) {
    std::vector<float> values(bucket.elements(), step.content == Content::constant ? 0.5f : 0.0f);
    const std::uint64_t seed = stream_seed(step.seed, number, bucket.id, rank);
    for (std::size_t i = 0; scale != 0 && i < values.size(); ++i)
      values[i] = scale * static_cast<float>(2 * random_unit(seed, i) - 1);
    model.push_back(std::move(values));
  }
  const bool bad = step.content == Content::nan || step.content == Content::infinity;
  if (!bad || rank != step.rank % std::max(1, workers_of(plan, plan.ranks))) return model;
  std::vector<float>& values = model[step.seed % model.size()];
  if (!values.empty())
    values[step.seed / 8 % values.size()] = step.content == Content::nan
                                                ? std::numeric_limits<float>::quiet_NaN()
                                                : -std::numeric_limits<float>::infinity();
  return model;
}

}  // namespace thinwire::fuzz
