// draw.h: random numbers for kernels with stochastic rounding: 32 bits as a function of (key,
// element), by 32-bit operations that every vector unit and GPU has. core/random.h is a better
// generator, but its 64-bit products cost a vector unit five times as much.
//
// Elements i and i + 16 of each 32 share a hash. The second one swaps the halves of the hash, so
// each number alone is uniform to the last bit, and their dependence is below 2^-16. For one key
// the hash is a permutation of all 32-bit numbers: a Weyl sequence through two rounds of shift, xor
// and multiply. The second half of the key is xored in between the rounds, so that keys whose
// sequences overlap still give unrelated numbers. Use the high bits. tests/kernels/draw_test.cc
// tests them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "thinwire/core/random.h"

namespace thinwire {

struct DrawKey {
  std::uint32_t start = 0;
  std::uint32_t twist = 0;
};

inline constexpr std::uint32_t draw_step = 0x9e3779b9u;
// Not an array: nvcc compiles a read of a host's array in device code to a trap, without a word.
inline constexpr std::uint32_t draw_first_factor = 0x7feb352du, draw_second_factor = 0x846ca68bu;

constexpr DrawKey draw_key(std::uint64_t seed) {
  const std::uint64_t bits = random_at(seed, 0);
  return {static_cast<std::uint32_t>(bits), static_cast<std::uint32_t>(bits >> 32)};
}

constexpr std::uint32_t draw_hash(DrawKey key, std::uint32_t pair) {
  std::uint32_t x = pair * draw_step + key.start;
  x = (x ^ (x >> 16)) * draw_first_factor;
  x = (x ^ (x >> 15) ^ key.twist) * draw_second_factor;
  return x ^ (x >> 16);
}

constexpr std::uint32_t draw_at(DrawKey key, std::uint32_t element) {
  const std::uint32_t hash = draw_hash(key, element / 32 * 16 + element % 16);
  return element % 32 < 16 ? hash : hash << 16 | hash >> 16;
}

}  // namespace thinwire
