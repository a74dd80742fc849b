// quota_test.cc: how many elements may be sent, how a threshold is steered towards that number, and
// what a half can hold.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/memory/quota.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/gradients.h"
#include "thinwire/memory/csc.h"

namespace thinwire {
namespace {

// `most` bounds the frames, and every rank computes it independently, so these numbers
// are a promise.
TEST(Quota, TheBandIsAQuarterAndEight) {
  EXPECT_EQ(Quota::of(1'000'000, 0.001).most, 1258u);
  EXPECT_EQ(Quota::of(1000, 0.1).wanted, 100u);
  EXPECT_EQ(Quota::of(1000, 0.1).most, 133u);
  EXPECT_EQ(Quota::of(100, 0.01).most, 9u);
  EXPECT_EQ(Quota::of(5, 0.5).most, 5u);
  EXPECT_EQ(Quota::of(1000, 0.0015).wanted, 2u);
  EXPECT_EQ(Quota::of(1000, 0.0014).wanted, 1u);
  EXPECT_EQ(Quota::of(0, 0.5).most, 0u);
}

double steered(double value, std::size_t picked, std::size_t wanted) {
  Threshold threshold{value};
  threshold.steer(picked, wanted);
  return threshold.value;
}

TEST(Threshold, MovesGentlyTowardsTheQuota) {
  EXPECT_EQ(steered(4, 100, 100), 4);
  EXPECT_NEAR(steered(4, 150, 100), 4.04, 1e-12);
  EXPECT_NEAR(steered(4, 50, 100), 3.96, 1e-12);
  EXPECT_NEAR(steered(4, 200, 100), 4.08, 1e-12);
  EXPECT_NEAR(steered(4, 250, 100), 4.08, 1e-12);
  EXPECT_NEAR(steered(4, 900, 100), 4.08, 1e-12);
  EXPECT_EQ(steered(0, 0, 0), 0);
}

TEST(Threshold, IsForgottenWhenFewerThanHalfPass) {
  EXPECT_EQ(steered(4, 49, 100), 0);
  EXPECT_EQ(steered(4, 0, 100), 0);
  EXPECT_NE(steered(4, 50, 100), 0);
}

TEST(CscGrid, SharesAreRoundedAndNeverNone) {
  const CscGrid grid{100, 10};
  EXPECT_EQ(grid.share(0.001), 1u);
  EXPECT_EQ(grid.share(0.24), 2u);
  EXPECT_EQ(grid.share(0.26), 3u);
  EXPECT_EQ(grid.share(1), 10u);
  EXPECT_EQ((CscGrid{101, 10}.count()), 11u);
  EXPECT_EQ((CscGrid{101, 10}.size(10)), 1u);
}

// A sum of halves must not overflow, so each worker sends at most half of f16's range and keeps the
// rest.
TEST(SummedValues, LimitsWhatAHalfCannotHold) {
  for (const float sign : {1.0f, -1.0f}) {
    const SummedValues values{DType::f16, 1};
    std::vector<float> x = {sign * 1e6f, sign * 30000.0f, sign * 32768.0f}, rest = x, average(3);
    std::vector<std::byte> bytes(values.bytes(3));
    values.write(x, bytes);
    ASSERT_TRUE(values.read(bytes, average));
    EXPECT_EQ(average, (std::vector<float>{sign * 32768, sign * 30000, sign * 32768}));
    values.keep_rest(rest);
    EXPECT_EQ(rest, (std::vector<float>{sign * (1e6f - 32768), 0, 0}));
  }
}

TEST(SummedValues, NaNIsSeen) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    const SummedValues values{dtype, 2};
    std::vector<float> x = {1, std::numeric_limits<float>::quiet_NaN()}, average(2);
    std::vector<std::byte> bytes(values.bytes(2));
    values.write(x, bytes);
    EXPECT_FALSE(values.read(bytes, average));
  }
}

State state_of(CscMemory& memory) {
  State state;
  StateSaver saver(state);
  memory.visit_state(saver);
  return state;
}

// Sent values leave the memory with the next gradient, or when it is read. Momentum leaves only if
// it is masked.
TEST(CscMemory, SentChunksAreClearedOnce) {
  const CscGrid grid{10, 3};
  for (const bool look : {false, true}) {
    for (const Velocity velocity : {Velocity::mask, Velocity::keep}) {
      CscMemory memory(Bucket::single(0, "w", 10), grid, {Accumulate::momentum, 0.5f},
                       {DType::f32, 1});
      std::vector<double> sums;
      memory.take_in(std::vector<float>(10, 1.0f), 3, sums);
      EXPECT_EQ(sums, (std::vector<double>{3, 3, 3, 1}));
      const std::vector<std::uint32_t> picks = {1, 3};
      std::vector<float> out(6);
      memory.send(picks, velocity, std::as_writable_bytes(std::span(out)));
      EXPECT_EQ(out, (std::vector<float>{1, 1, 1, 1, 0, 0}));
      if (look) state_of(memory);
      memory.take_in(std::vector<float>(10, 2.0f), 3, sums);
      const State state = state_of(memory);
      for (std::size_t i = 0; i < 10; ++i) {
        const bool sent = i / 3 == 1 || i / 3 == 3;
        const float u = sent && velocity == Velocity::mask ? 2.0f : 2.5f;
        EXPECT_EQ(state.at("w/u").values[i], u) << i;
        EXPECT_EQ(state.at("w/v").values[i], sent ? u : 3.5f) << i;
      }
    }
  }
}

}  // namespace
}  // namespace thinwire
