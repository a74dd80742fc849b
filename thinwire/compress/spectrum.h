// spectrum.h: a matrix as a sum of rank-one parts along orthonormal directions, the eigenvectors of
// its smaller Gram matrix. A direction u times the matrix A is u (u^T A), whatever its strength; so
// the parts add up to the matrix as exactly as the directions are orthonormal, and who drops parts
// at random is right on average. For k x l, k <= l: about k^2 l + 4 k^3 operations, and 2 k l +
// 10 k^2 for each part that is written.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "thinwire/compress/eigen.h"

namespace thinwire {

class Spectrum {
 public:
  // Takes a copy. All finite.
  Spectrum(std::span<const float> matrix, std::size_t rows, std::size_t cols);

  std::size_t parts() const { return order_.size(); }
  // Of a part, the largest first: how long it is, to about 1e-7 of the largest. Below that it may
  // be 0.
  double strength(std::size_t part) const { return strengths_[order_[part]]; }
  // Part i is length * u v^T: writes u (rows) and v (cols), both of length one, and returns the
  // length. Where that is 0, there is no v.
  double write(std::size_t part, float* u, float* v) const;

 private:
  SymmetricEigen decompose() const;

  bool flat_;  // more columns than rows
  std::size_t short_, long_;
  std::vector<float> tall_;  // long x short: the matrix, transposed where it is flat
  SymmetricEigen eigen_;
  std::vector<double> strengths_;
  std::vector<std::size_t> order_;
};

}  // namespace thinwire
