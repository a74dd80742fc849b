// natural_test.cc: powers of two: one result on every vector width, exact
// probabilities, edge cases.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/natural.h"

#include "tests/kernels/quantiser_testing.h"

namespace thinwire {
namespace {

class Natural : public EachTarget {};
THINWIRE_EACH_TARGET(Natural);

struct NoRule {};

template <auto natural>
bool encode(const NoRule&, const float* g, float* v, std::size_t count, DrawKey key,
            std::uint32_t first, std::uint8_t* out) {
  return natural(g, v, count, key, first, out, out + count);
}

template <auto natural>
bool add(const NoRule&, const std::uint8_t* in, std::size_t count, float share, float* target) {
  return natural(in, in + count, count, share, target);
}

std::size_t bytes(const NoRule&, std::size_t count) { return count + (count + 7) / 8; }

TEST_P(Natural, FastEqualsReference) {
  expect_fast_equals_reference<NoRule, encode<natural_encode>, encode<natural_encode_reference>,
                               add<natural_add>, add<natural_add_reference>>({}, bytes);
}

TEST_P(Natural, RefusesAnInfiniteExponentAnywhere) {
  for (const std::size_t at : {0u, 63u, 64u, 99u}) {
    std::vector<std::uint8_t> in(bytes({}, 100), 0);
    std::vector<float> target(100);
    in[at] = 254;
    EXPECT_TRUE(natural_add(in.data(), in.data() + 100, 100, 1, target.data()));
    in[at] = 255;
    EXPECT_FALSE(natural_add(in.data(), in.data() + 100, 100, 1, target.data()));
  }
}

// The mean and variance of `draws` roundings of x.
void moments(float x, std::uint32_t draws, double& mean, double& variance) {
  const std::vector<float> same(draws, x);
  std::vector<std::uint8_t> out(bytes({}, draws));
  std::vector<float> values(draws);
  ASSERT_TRUE(
      natural_encode(same.data(), nullptr, draws, draw_key(7), 0, out.data(), out.data() + draws));
  ASSERT_TRUE(natural_add(out.data(), out.data() + draws, draws, 1, values.data()));
  double sum = 0, squares = 0;
  for (const double value : values) {
    sum += value / x;
    squares += value / x * (value / x);
  }
  mean = sum / draws;
  variance = squares / draws - mean * mean;
}

// With x = 2^e (1 + f): up with probability f, so the mean is x and the variance 4^e f (1 - f),
// which is at most an eighth of x^2.
TEST(NaturalMoments, AreThePapers) {
  constexpr std::uint32_t draws = 1u << 16;
  for (const float x :
       {1.0f, 1.25f, -1.333f, 1.5f, -3.9f, 1e-30f, 1e30f, 0x1p-130f, -0x1.8p-127f}) {
    double mean = 0, variance = 0;
    moments(x, draws, mean, variance);
    const bool denormal = std::abs(x) < 0x1p-126f;
    const double low = denormal ? 0 : std::exp2(std::floor(std::log2(std::abs(x))));
    const double gap = denormal ? 0x1p-126 : low;
    const double f = (std::abs(x) - low) / gap;
    const double expected = gap * gap * f * (1 - f) / (double{x} * x);
    EXPECT_NEAR(mean, 1, 5 * std::sqrt(expected / draws) + 1e-12) << x;
    EXPECT_NEAR(variance, expected, 0.03 * expected + 1e-12) << x;
    if (!denormal) {
      EXPECT_LE(expected, 0.125 + 1e-12);
    }
  }
}

// docs/wire_format.md works this example.
TEST(NaturalValue, Example) {
  const float x[] = {1, -2, 0, 0.5f};
  std::vector<std::uint8_t> out(bytes({}, 4));
  ASSERT_TRUE(natural_encode(x, nullptr, 4, draw_key(1), 0, out.data(), out.data() + 4));
  EXPECT_EQ(out, (std::vector<std::uint8_t>{0x7f, 0x80, 0, 0x7e, 0x02}));
}

TEST(NaturalValue, ZeroAndPowersStay) {
  const std::vector<float> x = {
      0.0f, -0.0f, 1, -2, 0x1p-126f, 0x1p127f, std::numeric_limits<float>::max()};
  std::vector<std::uint8_t> out(bytes({}, x.size()));
  std::vector<float> back(x.size());
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    std::fill(back.begin(), back.end(), 0.0f);
    ASSERT_TRUE(natural_encode(x.data(), nullptr, x.size(), draw_key(seed), 0, out.data(),
                               out.data() + x.size()));
    ASSERT_TRUE(natural_add(out.data(), out.data() + x.size(), x.size(), 1, back.data()));
    EXPECT_EQ(back, (std::vector<float>{0, 0, 1, -2, 0x1p-126f, 0x1p127f, 0x1p127f}));
  }
}

}  // namespace
}  // namespace thinwire
