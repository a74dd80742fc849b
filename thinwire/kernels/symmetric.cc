// symmetric.cc: the passes of an eigendecomposition, one element at a time.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/symmetric.h"

#include <algorithm>

namespace thinwire {

void symmetric_gram_reference(const double* a, std::size_t rows, std::size_t stride, double* g) {
  for (std::size_t i = 0; i < stride; ++i) {
    for (std::size_t j = i - i % symmetric_block; j < stride; ++j) {
      double sum = 0;
      for (std::size_t r = 0; r < rows; ++r) sum += a[r * stride + i] * a[r * stride + j];
      g[i * stride + j] += sum;
    }
  }
}

void symmetric_step_reference(double* g, std::size_t size, std::size_t stride, const double* u,
                              const double* w, const double* v, double* product) {
  const std::size_t columns = (size + symmetric_block - 1) / symmetric_block * symmetric_block;
  std::fill_n(product, columns, 0.0);
  for (std::size_t i = 0; i < size; ++i) {
    double* row = g + i * stride;
    for (std::size_t j = 0; j < columns; ++j) {
      row[j] -= u[i] * w[j] + w[i] * u[j];
      product[j] += v[i] * row[j];
    }
  }
}

}  // namespace thinwire
