// eigen.cc: Householder reflections and the implicit QR method.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/compress/eigen.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "thinwire/compress/matrix.h"
#include "thinwire/kernels/symmetric.h"

namespace thinwire {
namespace {

// Per eigenvalue; two are usual. If more were needed, the vectors would still be orthonormal.
constexpr std::size_t most_sweeps = 30;

// Replaces the first `count` elements of `row` by the unit vector v whose reflection I - 2 v v^T
// maps them to (0, ..., 0, x), or by zeros where they already have that form. Clears the rest of
// the row. Returns x.
double make_reflection(double* row, std::size_t count, std::size_t stride) {
  const double last = row[count - 1], rest = product(row, row, count - 1);
  std::fill(row + count, row + stride, 0.0);
  if (rest == 0) {
    std::fill_n(row, count, 0.0);
    return last;
  }
  // x has the opposite sign of the last element, so that nothing cancels.
  const double length = std::sqrt(rest + last * last), x = last < 0 ? length : -length;
  row[count - 1] = last - x;
  const double norm = std::sqrt(rest + row[count - 1] * row[count - 1]);
  for (std::size_t j = 0; j < count; ++j) row[j] /= norm;
  return x;
}

}  // namespace

std::size_t padded(std::size_t size) {
  const std::size_t blocks = (size + symmetric_block - 1) / symmetric_block;
  return (blocks | 1) * symmetric_block;
}

SymmetricEigen::SymmetricEigen(std::vector<double> matrix, std::size_t size)
    : size_(size), stride_(padded(size)), rows_(std::move(matrix)), diagonal_(size), beside_(size) {
  reduce();
  diagonalise();
}

// Works from the last row up. A reflection v changes the rows above it:
//   (I - 2 v v^T) G (I - 2 v v^T) = G - v w^T - w v^T,  w = 2 (p - (v p) v),  p = G v.
// This is applied when the next reflection needs its p, so that one pass over the matrix does both.
void SymmetricEigen::reduce() {
  std::vector<double> none(stride_), w(stride_), p(stride_);
  const double* v = none.data();
  for (std::size_t m = size_; m-- > 0;) {
    double* row = &rows_[m * stride_];
    for (std::size_t j = 0; j <= m; ++j) row[j] -= v[m] * w[j] + w[m] * v[j];
    diagonal_[m] = row[m];
    if (m == 0) break;
    beside_[m] = make_reflection(row, m, stride_);
    symmetric_step(rows_.data(), m, stride_, v, w.data(), row, p.data());
    v = row;
    const double along = product(v, p.data(), m);
    for (std::size_t j = 0; j < m; ++j) w[j] = 2 * (p[j] - along * v[j]);
    w[m] = 0;
  }
}

void SymmetricEigen::diagonalise() {
  double largest = 0;
  for (std::size_t i = 0; i < size_; ++i)
    largest = std::max(largest, std::abs(diagonal_[i]) + std::abs(beside_[i]));
  // Relative to the whole matrix, not to the neighbours: between zeros that are rounding errors the
  // iteration would not end.
  const double negligible = std::numeric_limits<double>::epsilon() * largest;
  rotations_.reserve(size_ * size_ * 5 / 4);  // two sweeps per eigenvalue, of half the rows
  std::size_t left = most_sweeps * size_;
  for (std::size_t last = size_ > 0 ? size_ - 1 : 0; last > 0;) {
    if (!(std::abs(beside_[last]) > negligible)) {
      --last;
      continue;
    }
    if (left-- == 0) return;
    std::size_t first = last - 1;
    while (first > 0 && std::abs(beside_[first]) > negligible) --first;
    sweep(first, last);
  }
}

// One QR step on rows first to last: a first rotation with Wilkinson's shift, and the rotations
// that chase the element outside the three diagonals to the end.
void SymmetricEigen::sweep(std::size_t first, std::size_t last) {
  double* d = diagonal_.data();
  double* e = beside_.data();
  const double half = (d[last - 1] - d[last]) / 2;
  const double root = std::sqrt(half * half + e[last] * e[last]);
  const double shift = d[last] - e[last] / (half < 0 ? half - root : half + root) * e[last];
  double x = d[first] - shift, outside = e[first + 1];
  sweeps_.push_back({first, last});
  for (std::size_t k = first; k < last; ++k) {
    const double length = std::sqrt(x * x + outside * outside);
    const double c = length > 0 ? x / length : 1, s = length > 0 ? outside / length : 0;
    rotations_.push_back({c, s});
    if (k > first) e[k] = length;
    const double moved = s * (d[k + 1] - d[k]) + 2 * c * e[k + 1];
    d[k] += s * moved;
    d[k + 1] -= s * moved;
    e[k + 1] = c * moved - e[k + 1];
    if (k + 1 == last) break;
    x = e[k + 1];
    outside = s * e[k + 2];
    e[k + 2] *= c;
  }
}

void SymmetricEigen::write_vector(std::size_t i, double* out) const {
  std::fill_n(out, size_, 0.0);
  out[i] = 1;
  std::size_t lowest = i, next = rotations_.size();  // the lowest element that may not be zero
  for (std::size_t at = sweeps_.size(); at-- > 0;) {
    const auto [first, last] = sweeps_[at];
    next -= last - first;
    if (last < lowest) continue;
    lowest = std::min(lowest, first);
    for (std::size_t k = last; k-- > first;) {
      const auto [c, s] = rotations_[next + k - first];
      const double x = out[k], y = out[k + 1];
      out[k] = c * x - s * y;
      out[k + 1] = s * x + c * y;
    }
  }
  for (std::size_t m = 2; m < size_; ++m) {
    const double* v = &rows_[m * stride_];
    const double twice = 2 * product(v, out, m);
    for (std::size_t j = 0; j < m; ++j) out[j] -= twice * v[j];
  }
}

}  // namespace thinwire
