// qsgd_test.cc: random levels: one result on every vector width, the paper's moments and sparsity.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/qsgd.h"

#include "tests/kernels/quantiser_testing.h"

namespace thinwire {
namespace {

class Qsgd : public EachTarget {};
THINWIRE_EACH_TARGET(Qsgd);

TEST_P(Qsgd, FastEqualsReference) {
  for (const QsgdRule& rule : {QsgdRule{512, 7, false}, QsgdRule{64, 3, true}}) {
    expect_fast_equals_reference<QsgdRule, qsgd_encode, qsgd_encode_reference, qsgd_add,
                                 qsgd_add_reference>(rule, qsgd_bytes);
  }
}

// All widths of levels, at every length of the last bucket.
TEST_P(Qsgd, PacksEveryWidth) {
  for (unsigned bits = 1; bits <= 8; ++bits) {
    for (std::size_t count = 1; count < 300; ++count) {
      const QsgdRule rule{128, bits, true};
      const auto g = make_content(Content::normal, bits, count);
      const std::vector<std::uint8_t> blank(qsgd_bytes(rule, count));
      Guarded<std::uint8_t> fast(blank, 0), slow(blank, 0);
      qsgd_encode(rule, g.data(), nullptr, count, draw_key(1), 0, fast.data());
      qsgd_encode_reference(rule, g.data(), nullptr, count, draw_key(1), 0, slow.data());
      ASSERT_TRUE(same_bits(fast.view(), slow.view()) && fast.intact()) << bits << " " << count;
      std::vector<float> a(count), b(count);
      ASSERT_TRUE(qsgd_add(rule, fast.data(), count, 1, a.data()));
      ASSERT_TRUE(qsgd_add_reference(rule, slow.data(), count, 1, b.data()));
      ASSERT_TRUE(same_bits<float>(a, b)) << bits << " " << count;
    }
  }
}

// Mean x and variance unit^2 f (1 - f), where f is the fraction of the level: per element, over
// many keys. Also the paper's bound: |error|^2 <= min(n / s^2, sqrt(n) / s) |x|^2.
TEST(QsgdMoments, AreThePapers) {
  constexpr std::size_t count = 512;
  constexpr int draws = 3000;
  for (const QsgdRule& rule :
       {QsgdRule{512, 1, false}, QsgdRule{512, 4, false}, QsgdRule{512, 2, true}}) {
    const auto x = make_content(Content::normal, 3, count);
    std::vector<double> sum(count), squares(count);
    double error = 0, length = 0, nonzeros = 0, norm = 0;
    for (int draw = 0; draw < draws; ++draw) {
      std::vector<std::uint8_t> out(qsgd_bytes(rule, count));
      std::vector<float> value(count);
      ASSERT_TRUE(qsgd_encode(rule, x.data(), nullptr, count,
                              draw_key(static_cast<std::uint64_t>(draw)), 0, out.data()));
      ASSERT_TRUE(qsgd_add(rule, out.data(), count, 1, value.data()));
      float wire = 0;
      std::memcpy(&wire, out.data(), 4);
      norm = wire;
      for (std::size_t i = 0; i < count; ++i) {
        sum[i] += value[i];
        squares[i] += double{value[i]} * value[i];
        error += std::pow(double{value[i]} - x[i], 2) / draws;
        nonzeros += value[i] != 0 ? 1.0 / draws : 0;
      }
    }
    const double s = (1 << rule.bits) - 1, unit = norm / s;
    double scores = 0, variance = 0, expected = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const double level = std::abs(x[i]) / unit, f = level - std::floor(level);
      const double mean = sum[i] / draws, own = unit * unit * f * (1 - f);
      length += double{x[i]} * x[i];
      scores += std::pow(mean - x[i], 2) / (own / draws + 1e-12);
      variance += squares[i] / draws - mean * mean;
      expected += own;
    }
    EXPECT_NEAR(scores / count, 1, 0.35);
    EXPECT_NEAR(variance / expected, 1, 0.02);
    if (!rule.largest) {
      EXPECT_NEAR(norm, std::sqrt(length), 1e-4);
      EXPECT_LE(error, std::min(count / (s * s), std::sqrt(count) / s) * length);
      EXPECT_LE(nonzeros, s * (s + std::sqrt(count)));
    }
  }
}

// docs/wire_format.md works this example.
TEST(QsgdValue, Example) {
  const float x[] = {3, -1, 0, 2};
  const QsgdRule rule{512, 2, true};
  std::vector<std::uint8_t> out(qsgd_bytes(rule, 4));
  ASSERT_TRUE(qsgd_encode(rule, x, nullptr, 4, draw_key(1), 0, out.data()));
  EXPECT_EQ(out, (std::vector<std::uint8_t>{0, 0, 0x40, 0x40, 0x02, 0x87}));
}

TEST(QsgdValue, ZeroAndLoneElements) {
  const QsgdRule rule;
  std::vector<float> x(600), back(600);
  std::vector<std::uint8_t> out(qsgd_bytes(rule, 600));
  ASSERT_TRUE(qsgd_encode(rule, x.data(), nullptr, 600, draw_key(1), 0, out.data()));
  ASSERT_TRUE(qsgd_add(rule, out.data(), 600, 1, back.data()));
  EXPECT_EQ(back, x);  // not NaN
  x[7] = -3;           // its own norm: always the top level
  ASSERT_TRUE(qsgd_encode(rule, x.data(), nullptr, 600, draw_key(1), 0, out.data()));
  ASSERT_TRUE(qsgd_add(rule, out.data(), 600, 1, back.data()));
  for (std::size_t i = 0; i < 600; ++i) EXPECT_NEAR(back[i], x[i], 1e-6);
}

TEST(QsgdValue, RefusesNormsThatNoEncoderWrites) {
  std::vector<std::uint8_t> bucket(qsgd_bytes({}, 3));
  float target[3] = {};
  const auto accepts = [&](float norm) {
    std::memcpy(bucket.data(), &norm, 4);
    return qsgd_add({}, bucket.data(), 3, 1, target);
  };
  EXPECT_TRUE(accepts(0));
  EXPECT_TRUE(accepts(1));
  EXPECT_FALSE(accepts(-0.0f));
  EXPECT_FALSE(accepts(-1));
  EXPECT_FALSE(accepts(1e-40f));
  EXPECT_FALSE(accepts(std::nanf("")));
  EXPECT_FALSE(accepts(std::numeric_limits<float>::infinity()));
}

}  // namespace
}  // namespace thinwire
