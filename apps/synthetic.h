// synthetic.h: synthetic gradients and supports that behave like real ones where it matters for
// speed and size. A seed gives the same numbers on every machine.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace thinwire::apps {

// A heavy-tailed number from stream `seed`: P(|x| > t) = (1 + t)^-4, either sign, never 0.
float heavy_tailed(std::uint64_t seed, std::uint64_t counter);

// Gradients of many steps in the memory of one. Each step sees the same numbers shifted by some
// cache lines, so every element gets a new value at no cost inside a measurement.
class Gradients {
 public:
  Gradients(std::size_t elements, std::uint64_t seed);
  std::span<const float> at(std::uint64_t step) const;

 private:
  std::size_t elements_;
  std::vector<float> values_;
};

// `survivors` of `elements` indices, ascending. Each subset is equally likely.
std::vector<std::uint32_t> uniform_support(std::uint32_t elements, std::size_t survivors,
                                           std::uint64_t seed);

// Values that survivors would have: heavy-tailed, above a threshold.
std::vector<float> survivor_values(std::size_t count, std::uint64_t seed);

}  // namespace thinwire::apps
