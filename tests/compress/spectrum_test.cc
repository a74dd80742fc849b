// spectrum_test.cc: the parts of a matrix: they add up to it, along orthonormal directions.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/compress/spectrum.h"

#include <gtest/gtest.h>

#include "tests/gradients.h"

namespace thinwire {
namespace {

using namespace testing;

double product(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += double{a[i]} * b[i];
  return sum;
}

void expect_sound(const std::vector<float>& matrix, std::size_t rows, std::size_t cols) {
  const Spectrum spectrum(matrix, rows, cols);
  ASSERT_EQ(spectrum.parts(), std::min(rows, cols));
  std::vector<double> sum(matrix.size());
  std::vector<std::vector<float>> us, vs;
  const double scale = norm(matrix);
  for (std::size_t part = 0; part < spectrum.parts(); ++part) {
    const double strength = spectrum.strength(part);
    if (part > 0) {
      EXPECT_LE(strength, spectrum.strength(part - 1));
    }
    if (strength <= 1e-6 * scale) continue;
    us.emplace_back(rows);
    vs.emplace_back(cols);
    spectrum.write(part, us.back().data(), vs.back().data());
    for (std::size_t i = 0; i < sum.size(); ++i)
      sum[i] += strength * us.back()[i / cols] * vs.back()[i % cols];
  }
  for (std::size_t i = 0; i < sum.size(); ++i) EXPECT_NEAR(sum[i], matrix[i], 1e-5 * scale);
  for (std::size_t a = 0; a < us.size(); ++a) {
    for (std::size_t b = 0; b <= a; ++b) {
      EXPECT_NEAR(product(us[a], us[b]), a == b ? 1 : 0, 1e-5);
      EXPECT_NEAR(product(vs[a], vs[b]), a == b ? 1 : 0, 1e-5);
    }
  }
}

TEST(Spectrum, PartsAddUpToTheMatrix) {
  const std::pair<std::size_t, std::size_t> shapes[] = {{1, 1},   {1, 9},  {9, 1},
                                                        {12, 12}, {7, 30}, {30, 7}};
  for (const auto& [rows, cols] : shapes) {
    expect_sound(gradient(Shape::normal, rows * cols, 1), rows, cols);
    expect_sound(gradient(Shape::constant, rows * cols, 2), rows, cols);
    expect_sound(gradient(Shape::zero, rows * cols, 3), rows, cols);
  }
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
