// steer_test.cc: how the threshold of a step follows from the one before, number by number; and
// which form of a matrix atomo sends where both are as long.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "thinwire/compress/atomo.h"
#include "thinwire/compress/threshold_codec.h"

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
    std::memcpy(&tau, payload.data() + 1, sizeof tau);
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
  EXPECT_FLOAT_EQ(after(true, 9, 7), 1.075f);
  EXPECT_FLOAT_EQ(after(true, 9, 100), 1.2f);
}

// Two triplets of 3 x 8 are 24 numbers, as the matrix is: then it travels whole.
TEST(Atomo, AsLongIsSentWhole) {
  const Bucket bucket{0, {{"w", 0, 24, {3, 8}}}};
  const auto codec = make_atomo_codec(3, bucket);
  const auto first = [&](std::size_t parts) {
    std::vector<float> x(24);
    for (std::size_t i = 0; i < parts; ++i) x[9 * i] = static_cast<float>(i + 2);
    std::vector<std::byte> out(codec->payload_bytes());
    EXPECT_TRUE(codec->encode(x, {}, 1, out).finite);
    std::uint32_t number = 0;
    std::memcpy(&number, out.data(), sizeof number);
    return number;
  };
  EXPECT_EQ(first(0), 0u);
  EXPECT_EQ(first(1), 1u);
  EXPECT_EQ(first(2), 0xffffffffu);
}

}  // namespace thinwire::steer
