// random.h: random numbers as a function of (seed, counter). There is no state, so every rank,
// thread and GPU draws the same numbers.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace thinwire {

// The counter-th number of stream `seed`: the finaliser of SplitMix64 over a Weyl sequence.
constexpr std::uint64_t random_at(std::uint64_t seed, std::uint64_t counter) {
  std::uint64_t z = seed * 0xd1342543de82ef95u + (counter + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

// A number below `bound` (> 0). The bias of the multiply is below bound / 2^32.
constexpr std::uint32_t random_below(std::uint64_t seed, std::uint64_t counter,
                                     std::uint32_t bound) {
  return static_cast<std::uint32_t>(((random_at(seed, counter) >> 32) * bound) >> 32);
}

// Uniform in [0, 1), a multiple of 2^-24: exact in a float.
constexpr float random_unit(std::uint64_t seed, std::uint64_t counter) {
  return static_cast<float>(random_at(seed, counter) >> 40) * 0x1p-24f;
}

// The seed of one rank's draws for one bucket in one step. Other ranks, steps and buckets have
// independent streams.
constexpr std::uint64_t stream_seed(std::uint64_t seed, std::uint64_t step, std::uint16_t bucket,
                                    int rank) {
  const auto place = std::uint64_t{bucket} << 32 | static_cast<std::uint32_t>(rank);
  return random_at(random_at(seed, step), place);
}

}  // namespace thinwire
