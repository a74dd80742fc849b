// draw_test.cc: draws are random where the quantisers look: high bits, neighbours, other keys.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/draw.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <vector>

namespace thinwire {
namespace {

constexpr std::uint32_t many = 1u << 18;

// Uniform in [0, 1).
double draw_unit(DrawKey key, std::uint32_t element) { return draw_at(key, element) * 0x1p-32; }

// How far `counts` are from uniform, in standard deviations of chi squared.
double surprise(const std::vector<double>& counts) {
  double total = 0, chi = 0;
  for (const double count : counts) total += count;
  const double expected = total / static_cast<double>(counts.size());
  for (const double count : counts) chi += (count - expected) * (count - expected) / expected;
  const auto freedom = static_cast<double>(counts.size() - 1);
  return (chi - freedom) / std::sqrt(2 * freedom);
}

TEST(Draw, HighBytesAreUniformAloneAndInPairs) {
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    const DrawKey key = draw_key(seed);
    std::vector<double> high(4096), pairs(4096), shared(4096), far(4096), keys(4096);
    for (std::uint32_t i = 0; i < many; ++i) {
      const std::uint32_t draw = draw_at(key, i);
      ++high[draw >> 20];
      ++pairs[(draw >> 26) * 64 + (draw_at(key, i + 1) >> 26)];
      ++shared[(draw >> 26) * 64 + (draw_at(key, i ^ 16) >> 26)];
      ++far[(draw >> 26) * 64 + (draw_at(key, i + 512) >> 26)];
      ++keys[(draw >> 26) * 64 + (draw_at(draw_key(seed + 1), i) >> 26)];
    }
    for (const auto& counts : {high, pairs, far, keys}) EXPECT_LT(std::abs(surprise(counts)), 5);
    // Every hash is seen from both of its elements and counts twice here, and so does chance.
    EXPECT_LT(std::abs(surprise(shared)), 10);
  }
}

// Flipping a bit of the element or of the seed flips each output bit half of the time. Some element
// uses each half as its high bits.
TEST(Draw, EveryInputBitReachesEveryBit) {
  for (unsigned flip = 0; flip < 96; ++flip) {
    std::vector<double> flips(32);
    for (std::uint32_t i = 0; i < 4096; ++i) {
      const std::uint32_t element = i * 77, other = element ^ (flip < 32 ? 1u << flip : 0);
      const std::uint64_t seed = random_at(5, i);
      const std::uint64_t other_seed = seed ^ (flip < 32 ? 0 : std::uint64_t{1} << (flip - 32));
      const std::uint32_t change =
          draw_at(draw_key(seed), element) ^ draw_at(draw_key(other_seed), other);
      for (unsigned b = 0; b < 32; ++b) flips[b] += change >> b & 1u;
    }
    for (unsigned b = 0; b < 32; ++b)
      EXPECT_NEAR(flips[b] / 4096, 0.5, 0.05) << flip << " to " << b;
  }
}

TEST(Draw, MomentsAreThoseOfTheUniformDistribution) {
  double sum = 0, squares = 0, neighbours = 0;
  for (std::uint32_t i = 0; i < many; ++i) {
    const double u = draw_unit(draw_key(3), i) - 0.5, next = draw_unit(draw_key(3), i + 1) - 0.5;
    sum += u;
    squares += u * u;
    neighbours += u * next;
  }
  EXPECT_NEAR(sum / many, 0, 5 * std::sqrt(1.0 / 12 / many));
  EXPECT_NEAR(squares / many, 1.0 / 12, 5 * std::sqrt(1.0 / 180 / many));
  EXPECT_NEAR(neighbours / many, 0, 5 * (1.0 / 12) / std::sqrt(many));
}

// Two elements share a hash. Each rounds at random with its own mean, and they are uncorrelated.
TEST(Draw, SharersAreUncorrelated) {
  for (const double p : {0.01, 0.3, 0.5, 0.9}) {
    double first = 0, second = 0, both = 0;
    for (std::uint32_t i = 0; i < many; ++i) {
      const std::uint32_t element = i / 16 * 32 + i % 16;
      const bool a = draw_unit(draw_key(4), element) < p,
                 b = draw_unit(draw_key(4), element + 16) < p;
      first += a;
      second += b;
      both += a && b;
    }
    const double sigma = 5 * std::sqrt(p * (1 - p) / many);
    EXPECT_NEAR(first / many, p, sigma);
    EXPECT_NEAR(second / many, p, sigma);
    EXPECT_NEAR(both / many - first / many * second / many, 0, p * (1 - p) * 5 / std::sqrt(many));
  }
}

// Permanent: resumed runs and other machines must draw the same.
TEST(Draw, IsPinned) {
  EXPECT_EQ(draw_at({0, 0}, 0), 0u);
  EXPECT_EQ(draw_at({1, 2}, 3), 4221614845u);
  EXPECT_EQ(draw_at(draw_key(1), 1000000), 468120435u);
}

}  // namespace
}  // namespace thinwire
