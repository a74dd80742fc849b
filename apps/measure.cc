// measure.cc: runs pairs of work and floor, and takes the median of their ratios.
// SPDX-License-Identifier: Apache-2.0
#include "apps/measure.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "thinwire/core/parallel.h"

namespace thinwire::apps {
namespace {

constexpr double shortest_seconds = 20e-6;  // a shorter sample is mostly clock and wake-ups
constexpr std::size_t fewest_pairs = 5;
constexpr std::size_t most_pairs = 2000;
constexpr std::size_t least_per_share = std::size_t{1} << 17;

double time_of(const std::function<void()>& body, std::size_t repeats) {
  const auto start = std::chrono::steady_clock::now();
  for (std::size_t i = 0; i < repeats; ++i) body();
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
  return passed.count() / static_cast<double>(repeats);
}

std::size_t repeats_for(double seconds) {
  return static_cast<std::size_t>(std::clamp(shortest_seconds / seconds, 1.0, 1e6));
}

struct Side {
  const std::function<void()>& body;
  std::size_t repeats = 1;
  std::vector<double> samples{};

  void warm() { repeats = repeats_for(std::max(time_of(body, repeats), 1e-9)); }
  double sample() { return samples.emplace_back(time_of(body, repeats)); }
};

}  // namespace

double quantile(std::vector<double>& samples, double q) {
  std::sort(samples.begin(), samples.end());
  const double at = q * static_cast<double>(samples.size() - 1);
  const auto below = static_cast<std::size_t>(at);
  const std::size_t above = std::min(below + 1, samples.size() - 1);
  return std::lerp(samples[below], samples[above], at - std::floor(at));
}

Timing measure(const std::function<void()>& work, const std::function<void()>& floor,
               const Effort& effort) {
  Side upper{work}, lower{floor};
  for (int i = 0; i < effort.warmup; ++i) {
    upper.warm();
    lower.warm();
  }
  std::vector<double> ratios;
  const auto start = std::chrono::steady_clock::now();
  const auto passed = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  while (ratios.size() < fewest_pairs ||
         (ratios.size() < most_pairs && passed() < effort.seconds)) {
    const double seconds = upper.sample();
    ratios.push_back(seconds / lower.sample());
  }
  return {.seconds = quantile(upper.samples, 0.5),
          .floor_seconds = quantile(lower.samples, 0.5),
          .ratio = quantile(ratios, 0.5),
          .ratio_low = quantile(ratios, 0.25),
          .ratio_high = quantile(ratios, 0.75),
          .pairs = ratios.size()};
}

void add_timing(Row& row, const Timing& timing) {
  row["seconds"] = timing.seconds;
  row["floor_seconds"] = timing.floor_seconds;
  row["ratio"] = timing.ratio;
  row["ratio_low"] = timing.ratio_low;
  row["ratio_high"] = timing.ratio_high;
  row["pairs"] = timing.pairs;
}

void for_shares(std::size_t elements, const std::function<void(std::size_t, std::size_t)>& body) {
  const std::size_t shares =
      std::clamp<std::size_t>(elements / least_per_share, 1, static_cast<std::size_t>(threads()));
  parallel_for(shares, [&](std::size_t share) {
    const std::size_t from = elements * share / shares, to = elements * (share + 1) / shares;
    body(from, to - from);
  });
}

}  // namespace thinwire::apps
