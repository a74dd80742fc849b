// spectrum.h: a matrix as a sum of rank-one parts along orthonormal directions, the eigenvectors of
// its smaller Gram matrix. The part of direction u is u (u^T A) for any u, so the parts add up to
// the matrix A as exactly as the directions are orthonormal, and dropping parts at random is
// unbiased. For k x l with k <= l it takes about k^2 l + 4 k^3 operations, and 2 k l + 10 k^2 for
// each part that is written.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "thinwire/compress/eigen.h"

namespace thinwire {

class Spectrum {
 public:
  // Copies the matrix. All elements are finite.
  Spectrum(std::span<const float> matrix, std::size_t rows, std::size_t cols);

  std::size_t parts() const { return order_.size(); }
  // The length of a part, with an error of about 1e-7 of the largest; smaller ones may be 0. Parts
  // are sorted, the largest first.
  double strength(std::size_t part) const { return strengths_[order_[part]]; }
  // A part is length * u v^T. Writes u (rows) and v (cols), both of length one, and returns the
  // length. Where it is 0, the longer of the two is not written.
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
