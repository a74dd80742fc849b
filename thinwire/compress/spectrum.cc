// spectrum.cc: finds the parts of a matrix through its Gram matrix.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/compress/spectrum.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "thinwire/compress/matrix.h"
#include "thinwire/kernels/symmetric.h"

namespace thinwire {
namespace {

// Rows per partial Gram matrix: they stay in a cache, and sums of partial sums round less.
constexpr std::size_t panel_rows = 64;

std::vector<float> make_tall(std::span<const float> matrix, std::size_t rows, std::size_t cols) {
  std::vector<float> tall(matrix.begin(), matrix.end());
  if (rows >= cols) return tall;
  for (std::size_t i = 0; i < rows; ++i) {
    for (std::size_t j = 0; j < cols; ++j) tall[j * rows + i] = matrix[i * cols + j];
  }
  return tall;
}

}  // namespace

Spectrum::Spectrum(std::span<const float> matrix, std::size_t rows, std::size_t cols)
    : flat_(rows < cols),
      short_(std::min(rows, cols)),
      long_(std::max(rows, cols)),
      tall_(make_tall(matrix, rows, cols)),
      eigen_(decompose()),
      strengths_(short_),
      order_(short_) {
  for (std::size_t i = 0; i < short_; ++i)
    strengths_[i] = std::sqrt(std::max(0.0, eigen_.value(i)));
  std::iota(order_.begin(), order_.end(), std::size_t{0});
  std::ranges::stable_sort(order_, std::ranges::greater{},
                           [&](std::size_t i) { return strengths_[i]; });
}

SymmetricEigen Spectrum::decompose() const {
  const std::size_t stride = padded(short_);
  std::vector<double> panel(panel_rows * stride), gram(stride * stride);
  for (std::size_t first = 0; first < long_; first += panel_rows) {
    const std::size_t rows = std::min(panel_rows, long_ - first);
    for (std::size_t r = 0; r < rows; ++r)
      std::copy_n(&tall_[(first + r) * short_], short_, &panel[r * stride]);
    symmetric_gram(panel.data(), rows, stride, gram.data());
  }
  for (std::size_t i = 0; i < short_; ++i) {
    for (std::size_t j = 0; j < i; ++j) gram[i * stride + j] = gram[j * stride + i];
  }
  return SymmetricEigen(std::move(gram), short_);
}

double Spectrum::write(std::size_t part, float* u, float* v) const {
  std::vector<double> direction(short_), along(long_);
  eigen_.write_vector(order_[part], direction.data());
  for (std::size_t r = 0; r < long_; ++r)
    along[r] = product(&tall_[r * short_], direction.data(), short_);
  const double length = std::sqrt(product(along.data(), along.data(), long_));
  float* of_short = flat_ ? u : v;
  float* of_long = flat_ ? v : u;
  for (std::size_t k = 0; k < short_; ++k) of_short[k] = static_cast<float>(direction[k]);
  if (length == 0) return 0;
  for (std::size_t r = 0; r < long_; ++r) of_long[r] = static_cast<float>(along[r] / length);
  return length;
}

}  // namespace thinwire
