// spectrum_test.cc: the parts of a matrix: they add up to it, along orthonormal directions, and
// parts without strength are negligible.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/compress/spectrum.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/gradients.h"

namespace thinwire {
namespace {

using namespace testing;

double product(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += double{a[i]} * b[i];
  return sum;
}

void expect_orthonormal(const std::vector<std::vector<float>>& vectors) {
  double worst = 0;
  for (std::size_t a = 0; a < vectors.size(); ++a) {
    for (std::size_t b = 0; b <= a; ++b)
      worst = std::max(worst, std::abs(product(vectors[a], vectors[b]) - (a == b ? 1 : 0)));
  }
  EXPECT_LE(worst, 1e-6);
}

void expect_sound(const std::vector<float>& matrix, std::size_t rows, std::size_t cols) {
  SCOPED_TRACE(std::to_string(rows) + " x " + std::to_string(cols));
  const Spectrum spectrum(matrix, rows, cols);
  ASSERT_EQ(spectrum.parts(), std::min(rows, cols));
  std::vector<double> rest(matrix.begin(), matrix.end());
  std::vector<std::vector<float>> us, vs;
  const double scale = norm(matrix);
  std::vector<float> u(rows), v(cols);
  for (std::size_t part = 0; part < spectrum.parts(); ++part) {
    const double strength = spectrum.strength(part);
    std::vector<float>& longer = rows < cols ? v : u;
    const std::vector<float> before = longer;
    const double length = spectrum.write(part, u.data(), v.data());
    if (length == 0) {
      EXPECT_TRUE(same_bits(longer, before));
    }
    EXPECT_LE(strength, spectrum.strength(part > 0 ? part - 1 : 0));
    EXPECT_NEAR(length, strength, 1e-7 * scale);
    if (strength == 0) continue;  // it is never sent
    for (std::size_t i = 0; length > 0 && i < rest.size(); ++i)
      rest[i] -= length * u[i / cols] * v[i % cols];
    if (strength <= 1e-4 * scale) continue;  // two weak parts overlap as much as they are strong
    us.push_back(u);
    vs.push_back(v);
  }
  double missing = 0;
  for (const double x : rest) missing += x * x;
  EXPECT_LE(std::sqrt(missing), 1e-6 * scale);
  expect_orthonormal(us);
  expect_orthonormal(vs);
}

std::vector<float> scaled(std::vector<float> matrix, float factor) {
  for (float& x : matrix) x *= factor;
  return matrix;
}

TEST(Spectrum, PartsAddUpToTheMatrix) {
  const std::pair<std::size_t, std::size_t> shapes[] = {
      {1, 1}, {1, 9}, {9, 1}, {1, 300}, {12, 12}, {7, 30}, {30, 7}, {64, 65}, {150, 200}};
  for (const auto& [rows, cols] : shapes) {
    expect_sound(gradient(Shape::normal, rows * cols, 1), rows, cols);
    expect_sound(gradient(Shape::constant, rows * cols, 2), rows, cols);
    expect_sound(gradient(Shape::zero, rows * cols, 3), rows, cols);
    expect_sound(gradient(Shape::heavy, rows * cols, 4), rows, cols);
  }
}

// Parts of length 1, and none.
TEST(Spectrum, UnitsAndZeros) {
  std::vector<float> units(6 * 9);
  for (std::size_t i = 0; i < 4; ++i) units[i * 9 + 8 - i] = i % 2 == 0 ? 1.0f : -1.0f;
  expect_sound(units, 6, 9);
  expect_sound(units, 9, 6);
}

TEST(Spectrum, HugeAndTinyMatrices) {
  const auto matrix = gradient(Shape::normal, 20 * 30, 1);
  for (const float factor : {1e-43f, 1e-30f, 1e30f, 1e37f}) {
    expect_sound(scaled(matrix, factor), 20, 30);
    expect_sound(scaled(matrix, factor), 30, 20);
  }
  auto mixed = matrix;
  for (std::size_t i = 0; i < mixed.size(); ++i) mixed[i] *= i % 2 ? 1e30f : 1e-30f;
  expect_sound(mixed, 20, 30);
}

// Strengths over ten orders of magnitude. Those that the Gram matrix cannot distinguish from its
// rounding are below 1e-6 in total.
TEST(Spectrum, GradedAndDependentRows) {
  const std::size_t rows = 40, cols = 60;
  auto graded = gradient(Shape::normal, rows * cols, 1);
  auto dependent = graded;
  for (std::size_t i = 0; i < rows; ++i) {
    const float factor = std::pow(10.0f, -0.25f * static_cast<float>(i));
    for (std::size_t j = 0; j < cols; ++j) {
      graded[i * cols + j] *= factor;
      dependent[i * cols + j] = dependent[i % 3 * cols + j];
    }
  }
  expect_sound(graded, rows, cols);
  expect_sound(dependent, rows, cols);
}

// All strengths equal: a matrix of signs whose rows are orthogonal.
TEST(Spectrum, EqualStrengths) {
  const std::size_t n = 64;
  std::vector<float> matrix(n * n);
  for (std::size_t i = 0; i < n * n; ++i)
    matrix[i] = std::popcount((i / n) & (i % n)) % 2 ? -1.0f : 1.0f;
  expect_sound(matrix, n, n);
  const Spectrum spectrum(matrix, n, n);
  EXPECT_NEAR(spectrum.strength(0), 8, 1e-12);
  EXPECT_NEAR(spectrum.strength(n - 1), 8, 1e-12);
}

TEST(Spectrum, KnownStrengths) {
  // diag(3, 1, 2) between two permutations.
  const std::vector<float> matrix = {0, 3, 0, 0, 0, 0, 1, 0, 2, 0, 0, 0};
  const Spectrum spectrum(matrix, 3, 4);
  EXPECT_DOUBLE_EQ(spectrum.strength(0), 3);
  EXPECT_DOUBLE_EQ(spectrum.strength(1), 2);
  EXPECT_DOUBLE_EQ(spectrum.strength(2), 1);
  // Rows (1, 1) and (1, -1) times 2 and 1: strengths sqrt(8) and sqrt(2).
  const Spectrum turned(std::vector<float>{2, 2, 1, -1}, 2, 2);
  EXPECT_NEAR(turned.strength(0), std::sqrt(8.0), 1e-12);
  EXPECT_NEAR(turned.strength(1), std::sqrt(2.0), 1e-12);
}

}  // namespace
}  // namespace thinwire
