// eigen.h: eigenvalues of a symmetric matrix, and its eigenvectors one by one, for who needs few of
// them: Householder's reflections to three diagonals, then the implicit QR method, in double
// precision. Reflections and rotations are kept and not multiplied out. Every number is rounded
// singly and added in a fixed order: the same bits everywhere.
//
// The vectors are as orthonormal as the rotations are, however far these got; and value(i) is the
// square form of vector i, not only once it is an eigenvalue.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

namespace thinwire {

// The stride of padded rows of `size` doubles: a multiple of kernels/symmetric.h's block, and an odd
// one, so that a column does not fall into few sets of a cache.
std::size_t padded(std::size_t size);

class SymmetricEigen {
 public:
  // `matrix` has padded(size) rows of padded(size) elements, with zeros outside size x size. All
  // finite, the largest between 1e-100 and 1e100 or all zero: squares are taken as they are. About
  // 4 size^3 operations.
  SymmetricEigen(std::vector<double> matrix, std::size_t size);

  // In no order.
  double value(std::size_t i) const { return diagonal_[i]; }
  // Writes `size` elements; about 10 size^2 operations.
  void write_vector(std::size_t i, double* out) const;

 private:
  struct Rotation {
    double c, s;
  };
  // Of rows `first` and first + 1, first + 1 and first + 2, ..., last - 1 and last.
  struct Sweep {
    std::size_t first, last;
  };

  void reduce();
  void diagonalise();
  void sweep(std::size_t first, std::size_t last);

  std::size_t size_, stride_;
  std::vector<double> rows_;  // the matrix; then row m holds the reflection that ended it
  std::vector<double> diagonal_, beside_;  // beside_[i] couples i - 1 and i
  std::vector<Sweep> sweeps_;
  std::vector<Rotation> rotations_;  // of all sweeps, one after the other
};

}  // namespace thinwire
