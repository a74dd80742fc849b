// matrix.h: a parameter as the matrix that low-rank schemes see: the first dimension by all others.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "thinwire/core/view.h"

namespace thinwire {

struct MatrixShape {
  std::size_t rows = 0, cols = 0;  // both 0: no matrix
};

inline MatrixShape matrix_shape(const Parameter& parameter) {
  if (parameter.shape.size() < 2 || parameter.shape[0] <= 0) return {};
  const auto rows = static_cast<std::size_t>(parameter.shape[0]);
  const std::size_t cols = parameter.count / rows;
  return cols > 0 && rows * cols == parameter.count ? MatrixShape{rows, cols} : MatrixShape{};
}

}  // namespace thinwire
