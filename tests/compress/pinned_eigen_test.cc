// pinned_eigen_test.cc: eigenvalues, eigenvectors, parts of a matrix and orthonormal vectors bit by
// bit. They are found by single exact operations in one order, and ranks must find the same ones,
// so their bits are a promise.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tests/gradients.h"
#include "thinwire/compress/basis.h"
#include "thinwire/compress/eigen.h"
#include "thinwire/compress/spectrum.h"
#include "thinwire/core/crc32c.h"

namespace thinwire::pinned_eigen {

enum class Kind { full, graded, sparse, even };

// An element of a matrix, a small whole number times a power of two, so that it is exact.
static double element(Kind kind, std::size_t n, std::size_t i, std::size_t j) {
  const double value = static_cast<double>(random_below(n, i * 100 + j, 64)) - 31;
  if (kind == Kind::graded) return std::ldexp(value, -2 * static_cast<int>(i + j));
  if (kind == Kind::sparse) return random_below(n + 1, i * 100 + j, 3) == 0 ? value : 0;
  if (kind == Kind::even && i == j) return 5;
  return value;
}

static SymmetricEigen decompose(Kind kind, std::size_t n) {
  const std::size_t stride = padded(n);
  std::vector<double> matrix(stride * stride);
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j <= i; ++j)
      matrix[i * stride + j] = matrix[j * stride + i] = element(kind, n, i, j);
  }
  return SymmetricEigen(std::move(matrix), n);
}

static std::uint32_t checksum(Kind kind) {
  std::uint32_t crc = 0;
  for (const std::size_t n : {0u, 1u, 2u, 3u, 7u, 16u, 33u}) {
    const SymmetricEigen eigen = decompose(kind, n);
    std::vector<double> vector(n);
    for (std::size_t i = 0; i < n; ++i) {
      const double value = eigen.value(i);
      crc = crc32c(std::as_bytes(std::span(&value, 1)), crc);
      eigen.write_vector(i, vector.data());
      crc = crc32c(std::as_bytes(std::span(vector)), crc);
    }
  }
  return crc;
}

TEST(PinnedEigen, ValuesAndVectorsHaveTheseBits) {
  EXPECT_EQ(checksum(Kind::full), 302143462u);
  EXPECT_EQ(checksum(Kind::graded), 3399402657u);
  EXPECT_EQ(checksum(Kind::sparse), 74202253u);
  EXPECT_EQ(checksum(Kind::even), 3340690476u);
}

// Longer than a panel of the Gram matrix, and of many sizes, so that its sums round.
TEST(PinnedSpectrum, PartsHaveTheseBits) {
  const std::size_t rows = 20, cols = 150;
  std::vector<float> matrix(rows * cols);
  for (std::size_t i = 0; i < matrix.size(); ++i)
    matrix[i] = std::ldexp(random_unit(3, i) - 0.25f, -static_cast<int>(i % 7));
  std::uint32_t crc = 0;
  for (const bool flat : {false, true}) {
    const std::size_t high = flat ? rows : cols, wide = flat ? cols : rows;
    const Spectrum spectrum(matrix, high, wide);
    std::vector<float> u(high), v(wide);
    for (std::size_t part = 0; part < spectrum.parts(); ++part) {
      const double numbers[] = {spectrum.strength(part), spectrum.write(part, u.data(), v.data())};
      crc = crc32c(std::as_bytes(std::span(numbers)), crc);
      crc = crc32c(std::as_bytes(std::span(u)), crc);
      crc = crc32c(std::as_bytes(std::span(v)), crc);
    }
  }
  EXPECT_EQ(crc, 3666186723u);
}

// Vectors that are nearly parallel, so that a projection leaves little and each one counts.
TEST(PinnedBasis, OrthonormalVectorsHaveTheseBits) {
  std::uint32_t crc = 0;
  for (const std::size_t length : {1u, 5u, 300u, 1024u, 1100u, 2500u}) {
    for (const float apart : {1.0f, 0x1p-12f, 0x1p-20f}) {
      std::vector<float> values(4 * length);
      const Basis basis{values.data(), length, 4, 1, length};
      draw(basis, length);
      for (std::size_t i = length; i < values.size(); ++i)
        values[i] = values[i % length] + apart * values[i];
      orthonormalise(basis, 9);
      crc = crc32c(std::as_bytes(std::span(values)), crc);
    }
  }
  EXPECT_EQ(crc, 892578837u);
}

}  // namespace thinwire::pinned_eigen
