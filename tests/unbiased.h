// unbiased.h: the law of stochastic schemes: what they send is right on average.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <numeric>

#include "tests/laws.h"

namespace thinwire::testing {

// How far chance may move a mean, in standard errors, and the probability exp(-luck) that other
// bounds leave to it. With eight configurations, two shapes and 200 seeds, none of 3200 runs
// broke a bound. By the binomial's tails 2e-6 of all runs do, most of them by an element just
// above the rare ones. Conversely, a factor of 1 % on one of qsgd's levels, of 2 % on
// terngrad's probabilities or of 5 % on atomo's triplets breaks them, and so does rounding that
// always goes down.
constexpr double most_errors = 6.5, luck = 16;

// What a scheme made of one gradient, repeatedly: the averages minus the true one.
struct Draws {
  std::vector<double> truth;
  std::vector<std::vector<double>> errors;  // per step, per element
  double largest = 0;                       // of the magnitudes that were drawn
};

inline Draws draw(Group& group, const Config& config, Shape shape, std::uint64_t seed, int steps,
                  const ExchangeKind& kind) {
  const std::vector<Bucket> buckets = {Bucket{0, {{"a", 0, 300, {20, 15}}, {"b", 300, 41, {}}}}};
  Exchange exchange(group, buckets, config, {.kind = kind});
  // Every rank has the first rank's gradient times a power of two, so that an element's draws are
  // equally rare on all ranks. Otherwise a rare one could hide behind the frequent draws of the
  // others, which alone would determine the measured error.
  auto mine = gradient(shape, buckets[0].elements(), seed);
  for (float& value : mine) value = std::ldexp(value, group.rank());
  const int workers = kind.workers(group.size());
  std::vector<float> sum = group.rank() < workers ? mine : std::vector<float>(mine.size());
  group.all_reduce(std::as_writable_bytes(std::span(sum)), DType::f32, ReduceOp::sum, {}).wait();
  Draws draws;
  for (const float value : sum) draws.truth.push_back(static_cast<double>(value) / workers);
  for (int step = 0; step < steps; ++step) {
    Model model = {mine};
    EXPECT_FALSE(take_step(exchange, model, 0).skipped);
    auto& errors = draws.errors.emplace_back();
    for (std::size_t i = 0; i < mine.size(); ++i) {
      errors.push_back(model[0][i] - draws.truth[i]);
      draws.largest = std::max(draws.largest, std::abs(double{model[0][i]}));
    }
  }
  return draws;
}

// Elements that are almost always the same, so that few draws determine their error: fewer than 5 %
// of these steps differ from the most common value.
inline std::vector<bool> rare_elements(std::span<const std::vector<double>> steps) {
  std::vector<bool> rare;
  std::vector<double> values(steps.size());
  for (std::size_t i = 0; i < steps[0].size(); ++i) {
    for (std::size_t step = 0; step < steps.size(); ++step) values[step] = steps[step][i];
    std::sort(values.begin(), values.end());
    // The most common of so many values would fill the middle.
    const auto same = std::equal_range(values.begin(), values.end(), values[values.size() / 2]);
    rare.push_back(static_cast<double>(same.second - same.first) >
                   0.95 * static_cast<double>(values.size()));
  }
  return rare;
}

struct Score {
  double mean = 0, deviation = 0;  // of one draw
  double value = 0;                // the mean in standard errors
};

// `fuzz` is what rounding may add to the error of a mean.
inline Score score_of(std::span<const double> errors, double fuzz) {
  const auto count = static_cast<double>(errors.size());
  Score score;
  for (const double error : errors) score.mean += error / count;
  double variance = 0;
  for (const double error : errors) variance += std::pow(error - score.mean, 2) / count;
  score.deviation = std::sqrt(variance);
  score.value = score.mean / (score.deviation / std::sqrt(count) + fuzz);
  return score;
}

// Every element separately, then all together: the sum of squared scores, which is about their
// number if elements are drawn independently. If they are drawn together (a triplet of atomo),
// there are effectively fewer, `freedoms`, estimated from the similarity of consecutive steps'
// draws. The bound is by Laurent and Massart.
inline void expect_elements(std::span<const std::vector<double>> steps,
                            const std::vector<bool>& rare, double fuzz) {
  std::vector<std::vector<double>> scaled(steps.size());
  std::vector<double> errors(steps.size());
  double squared_scores = 0, judged = 0;
  for (std::size_t i = 0; i < rare.size(); ++i) {
    if (rare[i]) continue;
    for (std::size_t step = 0; step < steps.size(); ++step) errors[step] = steps[step][i];
    const Score score = score_of(errors, fuzz);
    ASSERT_LT(std::abs(score.value), most_errors) << "element " << i;
    squared_scores += score.value * score.value;
    ++judged;
    for (std::size_t step = 0; step < steps.size(); ++step)
      scaled[step].push_back((errors[step] - score.mean) / score.deviation);
  }
  if (judged == 0) return;
  double alike = 0;
  for (std::size_t step = 1; step < steps.size(); ++step) {
    const auto& now = scaled[step];
    alike += std::pow(std::inner_product(now.begin(), now.end(), scaled[step - 1].begin(), 0.0), 2);
  }
  const double freedoms = judged * judged * static_cast<double>(steps.size() - 1) / alike;
  EXPECT_LT(squared_scores, judged * (1 + 2 * std::sqrt(luck / freedoms) + 2 * luck / freedoms))
      << freedoms << " freedoms of " << judged;
}

// Along the gradient and along its signs: a common factor, or a common pull towards zero.
inline void expect_sums(std::span<const std::vector<double>> steps,
                        const std::vector<double>& truth, double fuzz) {
  std::vector<double> along, shrunk;
  for (const auto& errors : steps) {
    along.push_back(std::inner_product(errors.begin(), errors.end(), truth.begin(), 0.0));
    shrunk.push_back(0);
    for (std::size_t i = 0; i < truth.size(); ++i)
      shrunk.back() += truth[i] < 0 ? -errors[i] : errors[i];
  }
  double squares = 0;
  for (const double x : truth) squares += x * x;
  const double root = std::sqrt(static_cast<double>(truth.size()));
  EXPECT_LT(std::abs(score_of(along, fuzz * std::sqrt(squares)).value), most_errors);
  EXPECT_LT(std::abs(score_of(shrunk, fuzz * root).value), most_errors);
}

// Rare elements together: an element drawn from values up to m has at most the variance |x| m, and
// Bernstein's bound holds however few draws there were.
inline void expect_rare(std::span<const std::vector<double>> steps, const std::vector<bool>& rare,
                        const Draws& draws, double fuzz) {
  const auto count = static_cast<double>(steps.size());
  double error = 0, variance = 0;
  for (std::size_t i = 0; i < rare.size(); ++i) {
    if (!rare[i]) continue;
    for (const auto& errors : steps) error += (draws.truth[i] < 0 ? -errors[i] : errors[i]) / count;
    variance += std::abs(draws.truth[i]) * draws.largest / count;
  }
  EXPECT_LT(std::abs(error),
            std::sqrt(2 * luck * variance) + luck / 3 * draws.largest / count + fuzz);
}

// Law: a configuration that claims to be right on average is. Separate draws determine which
// elements are rare: among the draws that are tested, an element that was drawn too seldom by
// chance would count as rare, and the others as too frequent.
inline void law_unbiased(Group& group, const Config& config, Shape shape, int steps,
                         const ExchangeKind& kind = {}, std::uint64_t seed = 11) {
  if (!right_on_average(config) || keeps_residual(config)) return;
  SCOPED_TRACE(config.str() + ", " + kind.str());
  const int first = steps / 4;
  const Draws draws = draw(group, config, shape, seed, first + steps, kind);
  const auto all = std::span(draws.errors);
  const auto rare = rare_elements(all.first(static_cast<std::size_t>(first)));
  const auto judged = all.subspan(static_cast<std::size_t>(first));
  double squares = 0;
  for (const double x : draws.truth) squares += x * x;
  const double fuzz = 1e-6 * std::sqrt(squares / static_cast<double>(draws.truth.size()));
  expect_elements(judged, rare, fuzz);
  expect_sums(judged, draws.truth, fuzz);
  expect_rare(judged, rare, draws, fuzz);
}

}  // namespace thinwire::testing
