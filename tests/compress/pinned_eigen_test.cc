// pinned_eigen_test.cc: eigenvalues and eigenvectors bit by bit. They are found by single exact
// operations in one order, and ranks must find the same ones, so their bits are a promise.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tests/gradients.h"
#include "thinwire/compress/eigen.h"
#include "thinwire/core/crc32c.h"

namespace thinwire::pinned_eigen {

// Small whole numbers, so that the matrix itself is exact.
static SymmetricEigen decompose(std::size_t n) {
  const std::size_t stride = padded(n);
  std::vector<double> matrix(stride * stride);
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j <= i; ++j)
      matrix[i * stride + j] = matrix[j * stride + i] =
          static_cast<double>(random_below(n, i * 100 + j, 64)) - 31;
  }
  return SymmetricEigen(std::move(matrix), n);
}

TEST(PinnedEigen, ValuesAndVectorsHaveTheseBits) {
  std::uint32_t crc = 0;
  for (const std::size_t n : {0u, 1u, 2u, 3u, 7u, 16u, 33u}) {
    const SymmetricEigen eigen = decompose(n);
    std::vector<double> vector(n);
    for (std::size_t i = 0; i < n; ++i) {
      const double value = eigen.value(i);
      crc = crc32c(std::as_bytes(std::span(&value, 1)), crc);
      eigen.write_vector(i, vector.data());
      crc = crc32c(std::as_bytes(std::span(vector)), crc);
    }
  }
  EXPECT_EQ(crc, 302143462u);
}

}  // namespace thinwire::pinned_eigen
