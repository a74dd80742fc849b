// largest.h: selects the largest magnitudes, the lower index first among equals, so that the choice
// is the same everywhere. A key holds both, so that integers are compared.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <functional>
#include <vector>

namespace thinwire {

// The element with the larger key is chosen first.
inline std::uint64_t magnitude_key(float value, std::uint32_t index) {
  const std::uint64_t magnitude = std::bit_cast<std::uint32_t>(value) & 0x7fffffffu;
  return magnitude << 32 | (~index & 0xffffffffu);
}

inline float magnitude_of(std::uint64_t key) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(key >> 32));
}

inline std::uint32_t index_of(std::uint64_t key) { return ~static_cast<std::uint32_t>(key); }

// Moves the `rank` largest keys to the front, in no order, and returns the smallest of them. `rank`
// counts from 1.
inline std::uint64_t nth_largest(std::vector<std::uint64_t>& keys, std::size_t rank) {
  const auto nth = keys.begin() + static_cast<std::ptrdiff_t>(rank - 1);
  std::nth_element(keys.begin(), nth, keys.end(), std::greater<>());
  return *nth;
}

}  // namespace thinwire
