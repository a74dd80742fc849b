// basis_test.cc: orthonormal vectors from good, nearly parallel, dependent and zero vectors.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/compress/basis.h"

#include <gtest/gtest.h>

#include "tests/gradients.h"

namespace thinwire {
namespace {

using namespace testing;

constexpr std::size_t length = 50, rank = 4;

double product(const std::vector<float>& x, std::size_t a, std::size_t b) {
  double sum = 0;
  for (std::size_t i = 0; i < length; ++i) sum += double{x[a * length + i]} * x[b * length + i];
  return sum;
}

Basis basis_of(std::vector<float>& x) { return {x.data(), length, rank, 1, length}; }

void expect_orthonormal(const std::vector<float>& x) {
  for (std::size_t a = 0; a < rank; ++a) {
    for (std::size_t b = 0; b <= a; ++b) EXPECT_NEAR(product(x, a, b), a == b ? 1 : 0, 1e-6);
  }
}

TEST(Basis, RandomVectorsBecomeOrthonormalAndKeepTheirSpan) {
  auto x = gradient(Shape::normal, rank * length, 1);
  const auto before = x;
  orthonormalise(basis_of(x), std::nullopt);
  expect_orthonormal(x);
  // The last vector lies in the span of the new ones.
  std::vector<double> rest(before.end() - length, before.end());
  for (std::size_t k = 0; k < rank; ++k) {
    double share = 0;
    for (std::size_t i = 0; i < length; ++i) share += rest[i] * x[k * length + i];
    for (std::size_t i = 0; i < length; ++i) rest[i] -= share * x[k * length + i];
  }
  for (const double value : rest) EXPECT_NEAR(value, 0, 1e-5);
}

TEST(Basis, InterleavedVectorsGiveTheSame) {
  auto x = gradient(Shape::normal, rank * length, 2);
  std::vector<float> mixed(x.size());
  for (std::size_t k = 0; k < rank; ++k) {
    for (std::size_t i = 0; i < length; ++i) mixed[i * rank + k] = x[k * length + i];
  }
  orthonormalise(basis_of(x), std::nullopt);
  orthonormalise({mixed.data(), length, rank, rank, 1}, std::nullopt);
  for (std::size_t k = 0; k < rank; ++k) {
    for (std::size_t i = 0; i < length; ++i) EXPECT_EQ(mixed[i * rank + k], x[k * length + i]);
  }
}

TEST(Basis, DrawsAreTheSameWhereverTheyLie) {
  std::vector<float> rows(rank * length), mixed(rows.size());
  draw(basis_of(rows), 3);
  draw({mixed.data(), length, rank, rank, 1}, 3);
  for (std::size_t k = 0; k < rank; ++k) {
    for (std::size_t i = 0; i < length; ++i) {
      EXPECT_EQ(rows[k * length + i], basis_draw(3, length, k, i));
      EXPECT_EQ(mixed[i * rank + k], rows[k * length + i]);
    }
  }
}

// What projection leaves counts down to 1e-12 of a vector; below that it is rounding.
TEST(Basis, NegligibleRestsAreNothing) {
  for (const float rest : {5e-12f, 5e-13f}) {
    std::vector<float> two = {1, 0, 1, rest};
    orthonormalise({two.data(), 2, 2, 1, 2}, std::nullopt);
    EXPECT_EQ(two, (std::vector<float>{1, 0, 0, rest > 1e-12f ? 1.0f : 0.0f}));
  }
}

TEST(Basis, NearlyParallelVectorsAreStillOrthogonal) {
  auto x = gradient(Shape::normal, rank * length, 3);
  for (std::size_t i = length; i < x.size(); ++i) x[i] = x[i % length] + 1e-6f * x[i];
  orthonormalise(basis_of(x), std::nullopt);
  expect_orthonormal(x);
  // As similar as floats can be: here one pass of projection would leave about 1e-5 between them.
  x = gradient(Shape::normal, rank * length, 3);
  for (std::size_t i = length; i < x.size(); ++i) x[i] = x[i % length];
  for (std::size_t k = 0; k < rank; ++k) {
    for (std::size_t i = 0; i < rank; ++i) x[k * length + i] = i == k ? 1e-11f : 0.0f;
  }
  orthonormalise(basis_of(x), std::nullopt);
  expect_orthonormal(x);
}

TEST(Basis, TinyAndLargeVectorsLoseNothing) {
  for (const float scale : {1e-35f, 1e35f}) {
    auto x = gradient(Shape::normal, rank * length, 4);
    for (float& value : x) value *= scale;
    orthonormalise(basis_of(x), std::nullopt);
    expect_orthonormal(x);
  }
}

TEST(Basis, ZeroAndDependentVectorsBecomeZeroOrADraw) {
  for (const bool redraw : {false, true}) {
    auto x = gradient(Shape::normal, rank * length, 5);
    for (std::size_t i = 0; i < length; ++i) {
      x[length + i] = 0;
      x[3 * length + i] = 2 * x[i];
    }
    orthonormalise(basis_of(x), redraw ? std::optional<std::uint64_t>(7) : std::nullopt);
    if (redraw) {
      expect_orthonormal(x);
    } else {
      EXPECT_NEAR(product(x, 0, 0), 1, 1e-6);
      EXPECT_EQ(product(x, 1, 1), 0);
      EXPECT_NEAR(product(x, 2, 2), 1, 1e-6);
      EXPECT_EQ(product(x, 3, 3), 0);
    }
  }
}

}  // namespace
}  // namespace thinwire
