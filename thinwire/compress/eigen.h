// eigen.h: the eigenvalues of a symmetric matrix, and single eigenvectors on demand, for callers
// that need few of them. Householder reflections reduce the matrix to tridiagonal form, then the
// implicit QR method diagonalises it, in double precision. Reflections and rotations are stored,
// not multiplied out. All sums have a fixed order, so the bits are the same everywhere.
//
// The vectors are orthonormal even if the iteration stops early; value(i) is then the quadratic
// form of vector i.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

namespace thinwire {

// The stride of padded rows of `size` doubles: an odd multiple of kernels/symmetric.h's block, so
// that a column does not map to a few sets of the cache.
std::size_t padded(std::size_t size);

class SymmetricEigen {
 public:
  // `matrix` has padded(size) rows of padded(size) elements, with zeros outside size x size. All
  // elements are finite, and the largest is between 1e-100 and 1e100, or all are zero: squares are
  // not scaled. About 4 size^3 operations.
  SymmetricEigen(std::vector<double> matrix, std::size_t size);

  // Eigenvalue i. They are not sorted.
  double value(std::size_t i) const { return diagonal_[i]; }
  // Writes the `size` elements of vector i. About 10 size^2 operations.
  void write_vector(std::size_t i, double* out) const;

 private:
  struct Rotation {
    double c, s;
  };
  // Rotations of the rows (first, first + 1), (first + 1, first + 2), ..., (last - 1, last).
  struct Sweep {
    std::size_t first, last;
  };

  void reduce();
  void diagonalise();
  void sweep(std::size_t first, std::size_t last);

  std::size_t size_, stride_;
  std::vector<double> rows_;               // the matrix; after reduce(), row m holds its reflection
  std::vector<double> diagonal_, beside_;  // beside_[i] couples i - 1 and i
  std::vector<Sweep> sweeps_;
  std::vector<Rotation> rotations_;  // of all sweeps, one after the other
};

}  // namespace thinwire
