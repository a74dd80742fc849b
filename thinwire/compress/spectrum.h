// spectrum.h: a matrix as a sum of rank-one parts along orthonormal directions, by the eigenvectors
// of its smaller Gram matrix (Jacobi's rotations in double precision). The parts add up to the
// matrix as exactly as the directions are orthonormal, however far the rotations got; so who drops
// parts at random is right on average. Slow: about 30 k^3 + 4 k^2 l operations for k x l, k <= l.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace thinwire {

// Part i is strength * u v^T, with u and v of length one; the largest strength first. A part of
// strength 0 has no v.
class Spectrum {
 public:
  Spectrum(std::span<const float> matrix, std::size_t rows, std::size_t cols);

  std::size_t parts() const { return order_.size(); }
  double strength(std::size_t part) const { return strengths_[order_[part]]; }
  // Writes u (rows) and v (cols).
  void write(std::size_t part, float* u, float* v) const;

 private:
  std::size_t rows_, cols_, short_, long_;
  std::vector<double> directions_;  // short x short: one per row
  std::vector<double> along_;       // short x long: each direction times the matrix
  std::vector<double> strengths_;
  std::vector<std::size_t> order_;
};

}  // namespace thinwire
