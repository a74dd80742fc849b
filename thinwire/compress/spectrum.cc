// spectrum.cc: Jacobi's method on the Gram matrix.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/compress/spectrum.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace thinwire {
namespace {

constexpr int most_sweeps = 30;
// Of the trace. What two directions this weak share is beyond the precision of the floats that are
// sent, and to part them would take many more sweeps.
constexpr double negligible = 1e-14;

double product(const double* a, const double* b, std::size_t count) {
  double sum = 0;
  for (std::size_t i = 0; i < count; ++i) sum += a[i] * b[i];
  return sum;
}

// (a, b) = (c a - s b, s a + c b), elements `step` apart.
void rotate(double* a, double* b, std::size_t count, std::size_t step, double c, double s) {
  for (std::size_t i = 0; i < count * step; i += step) {
    const double x = a[i], y = b[i];
    a[i] = c * x - s * y;
    b[i] = s * x + c * y;
  }
}

// Turns rows and columns p and q of the symmetric g so that g_pq becomes zero, and the directions
// with them; false when it is as good as zero.
bool turn(std::vector<double>& g, std::vector<double>& directions, std::size_t n, double threshold,
          std::size_t p, std::size_t q) {
  const double pp = g[p * n + p], qq = g[q * n + q], pq = g[p * n + q];
  if (!(std::abs(pq) > threshold)) return false;
  const double cotangent = (qq - pp) / (2 * pq);
  const double root = std::abs(cotangent) + std::sqrt(cotangent * cotangent + 1);
  const double tangent = (cotangent < 0 ? -1 : 1) / root;
  const double c = 1 / std::sqrt(tangent * tangent + 1), s = tangent * c;
  rotate(&g[p * n], &g[q * n], n, 1, c, s);
  rotate(&g[p], &g[q], n, n, c, s);
  rotate(&directions[p * n], &directions[q * n], n, 1, c, s);
  return true;
}

std::vector<double> eigenvectors(std::vector<double> g, std::size_t n) {
  std::vector<double> directions(n * n);
  double trace = 0;
  for (std::size_t i = 0; i < n; ++i) {
    directions[i * n + i] = 1;
    trace += g[i * n + i];
  }
  bool turned = true;
  for (int sweep = 0; turned && sweep < most_sweeps; ++sweep) {
    turned = false;
    for (std::size_t p = 0; p < n; ++p) {
      for (std::size_t q = p + 1; q < n; ++q)
        turned = turn(g, directions, n, negligible * trace, p, q) || turned;
    }
  }
  return directions;
}

}  // namespace

Spectrum::Spectrum(std::span<const float> matrix, std::size_t rows, std::size_t cols)
    : rows_(rows), cols_(cols), short_(std::min(rows, cols)), long_(std::max(rows, cols)) {
  const bool flat = rows <= cols;
  std::vector<double> wide(matrix.size());  // short x long
  for (std::size_t i = 0; i < matrix.size(); ++i)
    wide[flat ? i : (i % cols) * rows + i / cols] = matrix[i];
  std::vector<double> gram(short_ * short_);
  for (std::size_t i = 0; i < short_; ++i) {
    for (std::size_t j = 0; j <= i; ++j)
      gram[i * short_ + j] = gram[j * short_ + i] =
          product(&wide[i * long_], &wide[j * long_], long_);
  }
  directions_ = eigenvectors(std::move(gram), short_);
  along_.resize(matrix.size());
  strengths_.resize(short_);
  for (std::size_t i = 0; i < short_; ++i) {
    double* row = &along_[i * long_];
    for (std::size_t k = 0; k < short_; ++k) {
      const double share = directions_[i * short_ + k];
      for (std::size_t j = 0; j < long_; ++j) row[j] += share * wide[k * long_ + j];
    }
    strengths_[i] = std::sqrt(product(row, row, long_));
  }
  order_.resize(short_);
  std::iota(order_.begin(), order_.end(), std::size_t{0});
  std::stable_sort(order_.begin(), order_.end(),
                   [&](std::size_t a, std::size_t b) { return strengths_[a] > strengths_[b]; });
}

void Spectrum::write(std::size_t part, float* u, float* v) const {
  const std::size_t i = order_[part];
  float* of_short = rows_ <= cols_ ? u : v;
  float* of_long = rows_ <= cols_ ? v : u;
  for (std::size_t k = 0; k < short_; ++k)
    of_short[k] = static_cast<float>(directions_[i * short_ + k]);
  for (std::size_t j = 0; j < long_; ++j)
    of_long[j] = static_cast<float>(along_[i * long_ + j] / strengths_[i]);
}

}  // namespace thinwire
