// synthetic.cc: numbers from the counter-based generator of core/random.h.
// SPDX-License-Identifier: Apache-2.0
#include "apps/synthetic.h"

#include <cmath>

#include "apps/measure.h"
#include "thinwire/core/random.h"

namespace thinwire::apps {
namespace {

constexpr std::size_t cache_line = 16;            // in floats: shifts keep alignment
constexpr std::size_t spare = std::size_t{4096};  // lines behind the end, for the shifts

// Maps a uniform number in (0, 1] to a magnitude, by inverting the tail.
float from_tail(float unit) { return 1.0f / std::sqrt(std::sqrt(unit)) - 1.0f; }

}  // namespace

float heavy_tailed(std::uint64_t seed, std::uint64_t counter) {
  const std::uint64_t bits = random_at(seed, counter);
  // Half a step above 0 and below 1, so that the magnitude is neither infinite nor 0.
  const float unit = (static_cast<float>(bits >> 41) + 0.5f) * 0x1p-23f;
  return (bits & 1) != 0 ? from_tail(unit) : -from_tail(unit);
}

Gradients::Gradients(std::size_t elements, std::uint64_t seed)
    : elements_(elements), values_(elements + spare * cache_line) {
  for_shares(values_.size(), [&](std::size_t first, std::size_t count) {
    for (std::size_t i = first; i < first + count; ++i) values_[i] = heavy_tailed(seed, i);
  });
}

std::span<const float> Gradients::at(std::uint64_t step) const {
  const std::uint64_t shift = random_at(0, step) % (spare + 1);
  return std::span(values_).subspan(static_cast<std::size_t>(shift) * cache_line, elements_);
}

std::vector<std::uint32_t> uniform_support(std::uint32_t elements, std::size_t survivors,
                                           std::uint64_t seed) {
  std::vector<std::uint32_t> support;
  support.reserve(survivors);
  // Selection sampling: takes each element with the probability that makes every
  // subset equally likely.
  for (std::uint32_t i = 0; i < elements && support.size() < survivors; ++i) {
    const double unit = static_cast<double>(random_at(seed, i) >> 11) * 0x1p-53;
    const auto wanted = static_cast<double>(survivors - support.size());
    if (unit * static_cast<double>(elements - i) < wanted) support.push_back(i);
  }
  return support;
}

std::vector<float> survivor_values(std::size_t count, std::uint64_t seed) {
  constexpr float threshold = 4.6f;  // one element in a thousand exceeds it
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    const float value = heavy_tailed(seed, i);
    // A Pareto tail above a threshold is the same tail, scaled.
    values[i] = value + std::copysign(threshold * (1.0f + std::abs(value)), value);
  }
  return values;
}

}  // namespace thinwire::apps
