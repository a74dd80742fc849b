// mean.h: what a rank really sent in a step, and whether an average is the mean of that over the
// ranks. If a scheme keeps a residual, its memory tells: before + given - after. If it keeps
// nothing, a second encoder writes the same bytes, and a decoder for one worker reads them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "thinwire/thinwire.h"

namespace thinwire::testing {

inline double number_option(const Config& config, const std::string& name) {
  const Scheme& scheme = find_scheme(config.scheme);
  for (const Option& option : scheme.options) {
    if (option.name != name) continue;
    const auto given = config.options.find(name);
    return std::stod(given == config.options.end() ? option.fallback : given->second);
  }
  return 0;
}

// Whether the average of a configuration is the mean of what was sent, and whether that
// can be determined. signum counts votes; clipping scales a gradient by a factor that
// only the encoder knows.
inline bool mean_can_be_told(const Config& config) {
  const bool votes = keeps_momentum(config) && !keeps_residual(config);
  return !votes && number_option(config, "clip") == 0;
}

inline const std::vector<float>* values_of(const State& state, const std::string& name) {
  const auto found = state.find(name);
  return found == state.end() ? nullptr : &found->second.values;
}

inline std::vector<float> sent_by_memory(const Config& config, const Bucket& bucket,
                                         std::span<const float> gradient, const State& before,
                                         const State& after) {
  const auto m = static_cast<float>(number_option(config, "momentum"));
  const auto nesterov = config.options.find("nesterov");
  const bool ahead = nesterov != config.options.end() && nesterov->second == "on";
  const auto mask = config.options.find("mask");
  const bool pools =
      config.scheme == "dgc" && (mask == config.options.end() || mask->second == "pool");
  std::vector<float> sent(gradient.size());
  for (const Parameter& parameter : bucket.parameters) {
    const auto& old = before.at(parameter.name + "/v").values;
    const auto& now = after.at(parameter.name + "/v").values;
    const auto* u = values_of(before, parameter.name + "/u");
    if (pools && u != nullptr) {
      const auto& after_u = after.at(parameter.name + "/u").values;
      for (std::size_t i = 0; i < parameter.count; ++i) {
        const double left = m * (double{(*u)[i]} - after_u[i]) + gradient[parameter.offset + i];
        sent[parameter.offset + i] = static_cast<float>(old[i] + left / (1.0 - m) - now[i]);
      }
      continue;
    }
    for (std::size_t i = 0; i < parameter.count; ++i) {
      const float g = gradient[parameter.offset + i];
      float entered = g;  // added to the residual: the gradient, or the momentum that includes it
      if (u != nullptr) entered = ahead ? m * ((*u)[i] + g) + g : m * (*u)[i] + g;
      sent[parameter.offset + i] = old[i] + entered - now[i];
    }
  }
  return sent;
}

// All ranks together: earlier rounds are reduced over the group, the last one is
// decoded separately.
inline std::vector<float> sent_by_bytes(Group& group, const Config& config, const Bucket& bucket,
                                        std::vector<float> gradient, const State& before,
                                        std::uint64_t step) {
  const Site alone{0, 1};
  const bool summed = find_scheme(config.scheme).reducible;  // draws nothing specific to a rank
  const auto encoder =
      make_compressor(config, bucket, summed ? alone : Site{group.rank(), group.size()});
  const auto decoder = make_compressor(config, bucket, alone);
  StateLoader loader(before);  // restores thresholds that carry over between steps
  encoder->visit_state(loader);
  for (int round = 0; round < encoder->rounds(); ++round) {
    const Leg leg = encoder->leg(step, round);
    std::vector<std::byte> room(leg.bytes);
    const Turn turn{step, round, {}, 0};
    const Bytes out = leg.in_place ? std::as_writable_bytes(std::span(gradient)) : Bytes(room);
    const std::size_t sizes[] = {encoder->encode(turn, std::span(gradient), out)};
    const Inbox inbox{out, leg.bytes, sizes};
    if (round + 1 < encoder->rounds()) {
      group.all_reduce(out, leg.dtype, ReduceOp::max, {}).wait();
      EXPECT_TRUE(encoder->decode(turn, inbox, std::span(gradient)).ok());
    }
    EXPECT_TRUE(decoder->decode(turn, inbox, std::span(gradient)).ok()) << config.str();
  }
  return gradient;
}

// Law: `average` is the mean over the ranks of what they sent, to the rounding of the values' sums.
inline void expect_mean(Group& group, const Config& config, const Bucket& bucket,
                        std::vector<float> gradient, std::span<const float> average,
                        const State& before, const State& after, std::uint64_t step) {
  const bool memory =
      !bucket.parameters.empty() && after.count(bucket.parameters[0].name + "/v") > 0;
  std::vector<float> sum =
      memory ? sent_by_memory(config, bucket, gradient, before, after)
             : sent_by_bytes(group, config, bucket, std::move(gradient), before, step);
  float largest[] = {0};
  for (const float value : sum) largest[0] = std::max(largest[0], std::abs(value));
  group.all_reduce(std::as_writable_bytes(std::span(largest)), DType::f32, ReduceOp::max, {})
      .wait();
  group.all_reduce(std::as_writable_bytes(std::span(sum)), DType::f32, ReduceOp::sum, {}).wait();
  const auto values = config.options.find("values");
  const bool halves = config.scheme == "fp16" || config.scheme == "bf16" ||
                      (values != config.options.end() && values->second.ends_with("f16"));
  const double rounding = (halves ? 0x1p-7 : 1e-5) * (1e-3 + double{largest[0]});
  for (std::size_t i = 0; i < sum.size(); ++i) {
    ASSERT_NEAR(average[i], double{sum[i]} / group.size(), rounding)
        << config.str() << ", bucket " << bucket.id << ", element " << i << ", step " << step;
  }
}

}  // namespace thinwire::testing
