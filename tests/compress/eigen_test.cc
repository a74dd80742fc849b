// eigen_test.cc: eigenvalues and eigenvectors of awkward symmetric matrices: orthonormal, accurate,
// equal to those of Jacobi's slow method, and the same bits with every vector width.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/compress/eigen.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "tests/gradients.h"
#include "thinwire/kernels/target.h"

namespace thinwire {
namespace {

using namespace testing;

// n x n, without padding.
struct Square {
  std::size_t n;
  std::vector<double> values = std::vector<double>(n * n);

  double& at(std::size_t i, std::size_t j) { return values[i * n + j]; }
  double at(std::size_t i, std::size_t j) const { return values[i * n + j]; }
  double norm() const {
    double sum = 0;
    for (const double value : values) sum += value * value;
    return std::sqrt(sum);
  }
};

Square symmetric(std::size_t n, const std::function<double(std::size_t, std::size_t)>& element) {
  Square square{n};
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j <= i; ++j) square.at(i, j) = square.at(j, i) = element(i, j);
  }
  return square;
}

// A A^T for an n x rank matrix of normal draws.
Square gram(std::size_t n, std::size_t rank, double scale = 1) {
  const auto a = gradient(Shape::normal, n * rank, 5);
  return symmetric(n, [&](std::size_t i, std::size_t j) {
    double sum = 0;
    for (std::size_t k = 0; k < rank; ++k) sum += double{a[i * rank + k]} * a[j * rank + k];
    return scale * sum;
  });
}

SymmetricEigen decompose(const Square& square) {
  const std::size_t stride = padded(square.n);
  std::vector<double> matrix(stride * stride);
  for (std::size_t i = 0; i < square.n; ++i)
    std::copy_n(&square.values[i * square.n], square.n, &matrix[i * stride]);
  return SymmetricEigen(std::move(matrix), square.n);
}

// The eigenvalues by Jacobi's method, ascending: rotates rows and columns p and q until each
// off-diagonal pair is zero.
std::vector<double> slow_values(Square a) {
  const double negligible = 1e-17 * a.norm();
  for (int round = 0; round < 60; ++round) {
    for (std::size_t p = 0; p < a.n; ++p) {
      for (std::size_t q = p + 1; q < a.n; ++q) {
        if (!(std::abs(a.at(p, q)) > negligible)) continue;
        const double angle = 0.5 * std::atan2(2 * a.at(p, q), a.at(q, q) - a.at(p, p));
        const double c = std::cos(angle), s = std::sin(angle);
        for (const bool columns : {false, true}) {
          for (std::size_t i = 0; i < a.n; ++i) {
            double& x = columns ? a.at(i, p) : a.at(p, i);
            double& y = columns ? a.at(i, q) : a.at(q, i);
            const double old = x;
            x = c * old - s * y;
            y = s * old + c * y;
          }
        }
      }
    }
  }
  std::vector<double> values;
  for (std::size_t i = 0; i < a.n; ++i) values.push_back(a.at(i, i));
  std::sort(values.begin(), values.end());
  return values;
}

// Z Z^T is the identity, and G Z^T is Z^T times the values, to 1e-13 of the norm.
void expect_sound(const Square& square) {
  const std::size_t n = square.n;
  const SymmetricEigen eigen = decompose(square);
  Square z{n};
  for (std::size_t i = 0; i < n; ++i) eigen.write_vector(i, &z.at(i, 0));
  double unlike_one = 0, wrong = 0;
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j < n; ++j) {
      double shared = 0, turned = 0;
      for (std::size_t k = 0; k < n; ++k) {
        shared += z.at(i, k) * z.at(j, k);
        turned += square.at(j, k) * z.at(i, k);
      }
      unlike_one = std::max(unlike_one, std::abs(shared - (i == j ? 1 : 0)));
      wrong = std::max(wrong, std::abs(turned - eigen.value(i) * z.at(i, j)));
    }
  }
  EXPECT_LE(unlike_one, 1e-13);
  EXPECT_LE(wrong, 1e-13 * square.norm());
}

void expect_slow_values(const Square& square) {
  const SymmetricEigen eigen = decompose(square);
  std::vector<double> values;
  for (std::size_t i = 0; i < square.n; ++i) values.push_back(eigen.value(i));
  std::sort(values.begin(), values.end());
  const std::vector<double> slow = slow_values(square);
  for (std::size_t i = 0; i < square.n; ++i)
    EXPECT_NEAR(values[i], slow[i], 1e-13 * square.norm()) << i << " of " << square.n;
}

void expect_all(const char* name, const Square& square) {
  SCOPED_TRACE(std::string(name) + ", " + std::to_string(square.n));
  expect_sound(square);
  if (square.n <= 40) expect_slow_values(square);
}

TEST(Eigen, AwkwardMatrices) {
  for (const std::size_t n : {1u, 2u, 3u, 7u, 8u, 9u, 16u, 33u, 40u, 300u}) {
    if (testing::sanitized && n > 40) break;  // small matrices already have every kind of access
    const auto noise = gradient(Shape::normal, n * n, 3);
    expect_all("any signs", symmetric(n, [&](auto i, auto j) { return noise[i * n + j]; }));
    expect_all("full rank", gram(n, n));
    expect_all("rank 1", gram(n, 1));
    expect_all("half the rank", gram(n, (n + 1) / 2));
    expect_all("zeros", Square{n});
    expect_all("equal values", symmetric(n, [](auto i, auto j) { return i == j ? 3.0 : 0.0; }));
    expect_all("a cluster", symmetric(n, [&](auto i, auto j) {
                 return (i == j ? 1.0 : 0.0) + 1e-12 * noise[i * n + j];
               }));
    expect_all("two clusters", symmetric(n, [&](auto i, auto j) {
                 return (i == j ? (i % 2 ? 1.0 : 2.0) : 0.0) + 1e-9 * noise[i * n + j];
               }));
    expect_all("graded", symmetric(n, [&](auto i, auto j) {
                 return std::pow(10.0, -0.5 * static_cast<double>(i + j)) * noise[i * n + j];
               }));
    // Pairs of values that agree to many digits, although no off-diagonal element is small.
    expect_all("Wilkinson's", symmetric(n, [&](auto i, auto j) {
                 const std::size_t middle = n / 2;
                 if (i == j) return static_cast<double>(i > middle ? i - middle : middle - i);
                 return i == j + 1 ? 1.0 : 0.0;
               }));
  }
}

// The squares of floats from the smallest to the largest.
TEST(Eigen, HugeAndTiny) {
  for (const double scale : {1e-90, 1e-60, 1e60, 1e82}) {
    expect_all("full rank", gram(40, 40, scale));
    expect_all("half the rank", gram(40, 20, scale));
  }
  const auto noise = gradient(Shape::normal, 1600, 3);
  expect_all("both", symmetric(40, [&](auto i, auto j) {
               return (i % 2 ? 1e-30 : 1e30) * (j % 2 ? 1e-30 : 1e30) * noise[i * 40 + j];
             }));
}

TEST(Eigen, KnownValues) {
  // 2 on the diagonal, -1 beside it: 2 - 2 cos(k pi / (n + 1)).
  const std::size_t n = 100;
  const SymmetricEigen eigen = decompose(symmetric(n, [](auto i, auto j) {
    if (i == j) return 2.0;
    return i == j + 1 ? -1.0 : 0.0;
  }));
  std::vector<double> values;
  for (std::size_t i = 0; i < n; ++i) values.push_back(eigen.value(i));
  std::sort(values.begin(), values.end());
  for (std::size_t k = 1; k <= n; ++k)
    EXPECT_NEAR(values[k - 1], 2 - 2 * std::cos(static_cast<double>(k) * M_PI / 101), 1e-13);
}

TEST(Eigen, SameBitsWithEveryVectorWidth) {
  const Square square = gram(77, 50);
  std::vector<double> first;
  for (const std::string& target : kernel_targets()) {
    force_kernel_target(target);
    const SymmetricEigen eigen = decompose(square);
    std::vector<double> all(77 * 78);
    for (std::size_t i = 0; i < 77; ++i) {
      all[77 * 77 + i] = eigen.value(i);
      eigen.write_vector(i, &all[i * 77]);
    }
    if (first.empty()) first = all;
    EXPECT_EQ(first, all) << target;
  }
  force_kernel_target("");
}

}  // namespace
}  // namespace thinwire
