// matrix.h: helpers for schemes that treat a parameter as a matrix.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "thinwire/core/view.h"

namespace thinwire {

// The first dimension by all others. Both are 0 where the parameter is no matrix.
struct MatrixShape {
  std::size_t rows = 0, cols = 0;
};

inline MatrixShape matrix_shape(const Parameter& parameter) {
  if (parameter.shape.size() < 2 || parameter.shape[0] <= 0) return {};
  const auto rows = static_cast<std::size_t>(parameter.shape[0]);
  const std::size_t cols = parameter.count / rows;
  return cols > 0 && rows * cols == parameter.count ? MatrixShape{rows, cols} : MatrixShape{};
}

// A scalar product in double precision. Element i is added to sum i % 8, and the eight sums are
// added as a tree: compilers vectorize this without changing a bit.
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
