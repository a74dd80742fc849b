// product.h: a scalar product in double precision. Element i is added to sum i % 8 and the eight sums
// as a tree: compilers make vectors of it without changing a bit.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace thinwire {

template <typename A, typename B>
double product(const A* a, const B* b, std::size_t count) {
  double sums[8] = {};
  std::size_t i = 0;
  for (; count - i >= 8; i += 8) {
    for (std::size_t k = 0; k < 8; ++k)
      sums[k] += static_cast<double>(a[i + k]) * static_cast<double>(b[i + k]);
  }
  for (std::size_t k = 0; i + k < count; ++k)
    sums[k] += static_cast<double>(a[i + k]) * static_cast<double>(b[i + k]);
  for (std::size_t half = 4; half > 0; half /= 2) {
    for (std::size_t k = 0; k < half; ++k) sums[k] += sums[k + half];
  }
  return sums[0];
}

}  // namespace thinwire
