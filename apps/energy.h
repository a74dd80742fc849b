// energy.h: how concentrated a gradient is: the share of its energy in its largest elements.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <vector>

namespace thinwire::apps {

// The largest n/1000, n/100 and n/10 of n elements, rounded up: 0.1, 1 and 10 %.
inline constexpr std::array<std::size_t, 3> top_parts = {1000, 100, 10};

struct Energy {
  std::size_t elements = 0;
  double total = 0;             // sum of squares
  std::array<double, 3> top{};  // by top_parts: share of the total, 0 .. 1; 0 if all is zero

  // The share of this energy in a larger whole.
  double share_of(const Energy& whole) const { return whole.total > 0 ? total / whole.total : 0; }
};

// The energy of all elements of the parts taken together. They must be finite. Copies them, because
// selection reorders them.
Energy energy_of(std::span<const std::span<const float>> parts);

}  // namespace thinwire::apps
