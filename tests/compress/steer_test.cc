// steer_test.cc: how the threshold of a step follows from the one before, number by number; which
// form of a matrix atomo sends where both are as long, and which triplets it draws.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "thinwire/compress/atomo.h"
#include "thinwire/compress/threshold_codec.h"
#include "thinwire/core/random.h"

namespace thinwire::steer {

// A hundred elements, of which ten are wanted.
class Steered {
 public:
  explicit Steered(bool keeps) : residual_(keeps ? 100 : 0) {}

  // Sends `large` elements of 1 among smaller ones, and one more of `most`; returns the threshold.
  float send(std::size_t large, float most = 0) {
    std::vector<float> g(100, 0.25f);
    for (std::size_t i = 0; i < large; ++i) g[i] = 1;
    if (most > 0) g[99] = most;
    std::fill(residual_.begin(), residual_.end(), 0.0f);
    std::vector<std::byte> payload(codec_.payload_bytes());
    EXPECT_TRUE(codec_.encode(g, residual_, 0, payload).finite);
    float tau = 0;
    std::memcpy(&tau, payload.data() + 4, sizeof tau);
    return tau;
  }

 private:
  ThresholdCodec codec_{{.density = 0.1}, Bucket::single(0, "w", 100)};
  std::vector<float> residual_;
};

// The threshold of the step after one with `large` elements of 1 above a threshold of 1.
static float after(bool keeps, std::size_t large, float most = 0) {
  Steered steered(keeps);
  EXPECT_EQ(steered.send(10), 1.0f);  // the tenth largest
  EXPECT_EQ(steered.send(large, most), 1.0f);
  return steered.send(10);
}

TEST(ThresholdCodec, MovesBySoMuch) {
  for (const bool keeps : {false, true}) {
    EXPECT_EQ(after(keeps, 10), 1.0f);
    EXPECT_FLOAT_EQ(after(keeps, 15), 1.025f);  // half too many
    EXPECT_FLOAT_EQ(after(keeps, 5), 0.975f);
    EXPECT_FLOAT_EQ(after(keeps, 0), 0.95f);
    EXPECT_FLOAT_EQ(after(keeps, 90), 1.2f);  // at most a fifth
  }
  // A residual of so many thresholds counts where it is kept, from four on.
  EXPECT_FLOAT_EQ(after(false, 9, 7), 1.0f);
  EXPECT_FLOAT_EQ(after(true, 9, 5), 1.0f);
  EXPECT_FLOAT_EQ(after(true, 9, 5.5f), 1.05625f);
  EXPECT_FLOAT_EQ(after(true, 9, 7), 1.075f);
  EXPECT_FLOAT_EQ(after(true, 9, 100), 1.2f);
}

// The first threshold is that of the gradient and the residual together.
TEST(ThresholdCodec, TheResidualCountsFromTheStart) {
  ThresholdCodec codec({.density = 0.1}, Bucket::single(0, "w", 10));
  const std::vector<float> g = {1, 1, 1, 1, 1, 1, 1, 1, 1, 4};
  std::vector<float> residual = {-3, 0, 0, 6, 0, 0, 0, 0, 0, -4};
  std::vector<std::byte> payload(codec.payload_bytes());
  codec.encode(g, residual, 0, payload);
  float tau = 0;
  std::memcpy(&tau, payload.data() + 4, sizeof tau);
  EXPECT_EQ(tau, 7.0f);
}

// Two triplets of 3 x 8 are 24 numbers, as the matrix is: then it travels whole.
TEST(Atomo, AsLongIsSentWhole) {
  const auto first = [&](std::size_t parts, std::int64_t rows = 3, std::int64_t cols = 8) {
    const auto count = static_cast<std::size_t>(rows * cols);
    const auto codec = make_atomo_codec(3, Bucket{0, {{"w", 0, count, {rows, cols}}}});
    std::vector<float> x(count), back(count);
    for (std::size_t i = 0; i < parts; ++i)
      x[i * static_cast<std::size_t>(cols + 1)] = static_cast<float>(i + 1);
    std::vector<std::byte> out(codec->payload_bytes());
    const Coded coded = codec->encode(x, {}, 1, out);
    EXPECT_TRUE(coded.finite);
    EXPECT_TRUE(codec->add(ConstBytes(out).first(coded.bytes), 1, back).ok());
    EXPECT_EQ(back, x);
    std::uint32_t number = 0;
    std::memcpy(&number, out.data(), sizeof number);
    return number;
  };
  EXPECT_EQ(first(0), 0u);
  EXPECT_EQ(first(1), 1u);
  EXPECT_EQ(first(2), 0xffffffffu);
  EXPECT_EQ(first(1, 2, 4), 1u);  // seven numbers for eight
  // No triplet of a single row or column is shorter, so these have no number in front.
  for (const std::int64_t rows : {1, 9}) {
    const Bucket bucket{0, {{"w", 0, 9, {rows, 9 / rows}}}};
    EXPECT_EQ(make_atomo_codec(3, bucket)->payload_bytes(), 36u);
  }
}

// A triplet is drawn where its number in the layer's stream is below its chance.
TEST(Atomo, DrawsFromTheStreamOfItsLayer) {
  const std::size_t rows = 12, cols = 20;
  const Bucket bucket{0, {{"b", 0, 5, {}}, {"w", 5, rows * cols, {12, 20}}}};
  std::vector<float> x(bucket.elements());
  std::vector<double> strengths;
  for (std::size_t i = 0; i < rows; ++i) {
    strengths.push_back(static_cast<double>(rows - i));
    x[5 + i * (cols + 1)] = static_cast<float>(rows - i);
  }
  const std::vector<double> chances = atomo_chances(strengths, 3);
  const auto codec = make_atomo_codec(3, bucket);
  std::vector<std::byte> out(codec->payload_bytes());
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    std::uint32_t drawn = 0, sent = 0;
    for (std::size_t i = 0; i < rows; ++i) {
      const auto number = static_cast<double>(random_at(random_at(seed, 1), i) >> 11) * 0x1p-53;
      if (number < chances[i]) ++drawn;
    }
    codec->encode(x, {}, seed, out);
    std::memcpy(&sent, out.data() + 5 * sizeof(float), sizeof sent);
    if (sent != 0xffffffffu) {
      ASSERT_EQ(sent, drawn) << seed;
    }
  }
}

// Elements of unit vectors are at most 1.
TEST(Atomo, RefusesVectorsThatAreNoUnitVectors) {
  const auto codec = make_atomo_codec(1, Bucket{0, {{"w", 0, 64, {8, 8}}}});
  const auto verdict = [&](std::size_t at, float value) {
    std::vector<float> triplet(17, 0.5f), sum(64);
    triplet[at] = value;
    std::vector<std::byte> payload = {std::byte{1}, {}, {}, {}};
    const auto bytes = std::as_bytes(std::span(triplet));
    payload.insert(payload.end(), bytes.begin(), bytes.end());
    return codec->add(payload, 1, sum).code;
  };
  for (std::size_t at = 1; at < 17; ++at) {
    for (const float sign : {1.0f, -1.0f}) {
      EXPECT_EQ(verdict(at, sign), Code::ok) << at;
      EXPECT_EQ(verdict(at, sign * 1.5f), Code::bad_value) << at;
    }
  }
  EXPECT_EQ(verdict(0, 0.25f), Code::ok);
  EXPECT_EQ(verdict(0, -0.25f), Code::bad_value);
}

}  // namespace thinwire::steer
