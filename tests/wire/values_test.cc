// values_test.cc: value coders: the values that the encoder returns, error bounds, limits of the
// float range.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/wire/values.h"

#include <gtest/gtest.h>

#include <bit>
#include <cfloat>
#include <limits>
#include <random>

#include "tests/wire/reference_decoder.h"
#include "tests/wire/support.h"

namespace thinwire {
namespace {

constexpr ValueCoder all_coders[] = {ValueCoder::f32,  ValueCoder::f16,  ValueCoder::bf16,
                                     ValueCoder::log8, ValueCoder::log4, ValueCoder::sign};
constexpr float denormal = std::numeric_limits<float>::denorm_min();

std::vector<std::uint32_t> patterns(const std::vector<float>& values) {
  std::vector<std::uint32_t> out;
  for (const float value : values) out.push_back(std::bit_cast<std::uint32_t>(value));
  return out;
}

struct CodedValues {
  std::vector<std::byte> bytes;
  std::vector<float> sent;  // as the encoder returns them
};

CodedValues encode(ValueCoder coder, std::vector<float> values) {
  CodedValues out{std::vector<std::byte>(value_bytes(coder, values.size())), std::move(values)};
  value_encode(coder, out.sent, out.bytes);
  return out;
}

void expect_round_trip(ValueCoder coder, const std::vector<float>& values) {
  SCOPED_TRACE(testing::Message() << value_coder_names[static_cast<std::size_t>(coder)] << ", "
                                  << values.size() << " values from " << values[0]);
  const CodedValues coded = encode(coder, values);
  std::vector<float> out(values.size());
  const Status status = value_decode(coder, coded.bytes, out);
  ASSERT_TRUE(status.ok()) << status.what;
  ASSERT_EQ(patterns(out), patterns(coded.sent));
  const auto slow = reference::values(static_cast<unsigned>(coder), coded.bytes, values.size());
  ASSERT_TRUE(slow.has_value());
  ASSERT_EQ(patterns(out), patterns(*slow));
  for (std::size_t i = 0; i < values.size(); ++i) {
    ASSERT_TRUE(std::isfinite(out[i]));
    ASSERT_EQ(std::signbit(out[i]), std::signbit(values[i]));
    if (coder != ValueCoder::f16 && coder != ValueCoder::bf16) {
      ASSERT_NE(out[i], 0.0f);
    }
  }
}

TEST(Values, EncoderHandsBackWhatDecodersRead) {
  for (const ValueCoder coder : all_coders) {
    for (const std::size_t count : {1u, 2u, 3u, 7u, 8u, 9u, 15u, 16u, 17u, 1001u})
      expect_round_trip(coder, tail_values(count, count));
    expect_round_trip(coder, {1, -1, 1, 1});
    expect_round_trip(coder, {denormal});
    expect_round_trip(coder, {denormal, -denormal, 3 * denormal});
    expect_round_trip(coder, {FLT_MAX, -FLT_MAX});
    expect_round_trip(coder, {denormal, FLT_MAX});
    expect_round_trip(coder, {-FLT_MIN, FLT_MIN / 2, 1e-30f, 1e30f, -65504, 65520, 1e-8f});
    std::vector<float> any;
    for (std::uint64_t i = 0; any.size() < 2000; ++i) {
      const auto value = std::bit_cast<float>(static_cast<std::uint32_t>(random_at(1, i)));
      if (std::isfinite(value) && value != 0) any.push_back(value);
    }
    expect_round_trip(coder, any);
  }
}

TEST(Values, HalvesSaturate) {
  EXPECT_EQ(encode(ValueCoder::f16, {1e9f, -65520.0f}).sent, (std::vector<float>{65504, -65504}));
  const float largest = std::bit_cast<float>(0x7f7f0000u);
  EXPECT_EQ(encode(ValueCoder::bf16, {FLT_MAX, -FLT_MAX}).sent,
            (std::vector<float>{largest, -largest}));
}

TEST(Values, SignSendsTheMeanToBf16) {
  EXPECT_EQ(encode(ValueCoder::sign, {1, -3}).sent, (std::vector<float>{2, -2}));
  EXPECT_EQ(encode(ValueCoder::sign, {-5}).sent, (std::vector<float>{-5}));
  const float unit = std::bit_cast<float>(0x10000u);  // the smallest bf16
  EXPECT_EQ(encode(ValueCoder::sign, {denormal}).sent, (std::vector<float>{unit}));
  const float large = std::bit_cast<float>(0x7f7f0000u);
  EXPECT_EQ(encode(ValueCoder::sign, {FLT_MAX, FLT_MAX}).sent, (std::vector<float>{large, large}));
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    std::vector<float> values = tail_values(seed, 1 + seed * 7);
    const double scale = std::ldexp(1.0, static_cast<int>(seed) * 5 - 130);
    double mean = 0;
    for (float& value : values) {
      value = static_cast<float>(value * scale);
      mean += std::fabs(value) / static_cast<double>(values.size());
    }
    const double sent = std::fabs(encode(ValueCoder::sign, values).sent[0]);
    EXPECT_NEAR(sent, mean, std::max(mean / 255, std::ldexp(1.0, -134))) << seed;
  }
}

TEST(Values, SignDoesNotDependOnTheOrder) {
  std::vector<float> values = tail_values(3, 1000);
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = std::ldexp(std::fabs(values[i]), static_cast<int>(i % 40) - 20);
  const float first = encode(ValueCoder::sign, values).sent[0];
  std::shuffle(values.begin(), values.end(), std::mt19937(1));
  EXPECT_EQ(encode(ValueCoder::sign, values).sent[0], first);
}

// The relative error is at most (hi - lo + 1) / (256 * levels), by construction.
void expect_log_error(ValueCoder coder, double levels) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const std::vector<float> values = tail_values(seed, 500);
    const CodedValues coded = encode(coder, values);
    const auto part = [&](std::size_t at) {
      return static_cast<double>(reference::number_at(coded.bytes, at, 2));
    };
    const double bound = (part(2) - part(0) + 1) / (256 * levels);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double error = std::fabs(double{coded.sent[i]} - values[i]);
      ASSERT_LE(error, bound * std::fabs(values[i]));
    }
  }
}

TEST(Values, LogErrorIsBounded) {
  expect_log_error(ValueCoder::log4, 8);
  expect_log_error(ValueCoder::log8, 128);
}

double energy_lost(ValueCoder coder, std::uint64_t seed) {
  const std::vector<float> values = tail_values(seed, 1000);
  const CodedValues coded = encode(coder, values);
  double lost = 0, all = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    lost += std::pow(double{values[i]} - coded.sent[i], 2);
    all += std::pow(double{values[i]}, 2);
  }
  return lost / all;
}

TEST(Values, LittleEnergyIsLost) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    EXPECT_LT(energy_lost(ValueCoder::sign, seed), 0.025);
    EXPECT_LT(energy_lost(ValueCoder::log4, seed), 0.007);
    EXPECT_LT(energy_lost(ValueCoder::log8, seed), 0.0001);
  }
}

TEST(Values, RefusesWhatNoEncoderWrites) {
  const auto refuses = [](ValueCoder coder, const std::vector<unsigned>& text, std::size_t count) {
    std::vector<std::byte> bytes;
    for (const unsigned byte : text) bytes.push_back(static_cast<std::byte>(byte));
    std::vector<float> out(count);
    return !value_decode(coder, bytes, out).ok();
  };
  EXPECT_TRUE(refuses(ValueCoder::f32, {0, 0, 0x80, 0x7f}, 1));
  EXPECT_TRUE(refuses(ValueCoder::f32, {1, 0, 0x80, 0xff}, 1));
  EXPECT_TRUE(refuses(ValueCoder::f16, {0, 0x7c}, 1));
  EXPECT_TRUE(refuses(ValueCoder::bf16, {0x80, 0xff}, 1));
  EXPECT_TRUE(refuses(ValueCoder::log8, {0x80, 0x3f, 0x7f, 0x3f, 0}, 1));  // lo above hi
  EXPECT_TRUE(refuses(ValueCoder::log8, {0, 0, 0x80, 0x7f, 0}, 1));        // hi not finite
  EXPECT_TRUE(refuses(ValueCoder::log4, {0x80, 0x3f, 0x80, 0x3f, 0x10}, 1));
  EXPECT_FALSE(refuses(ValueCoder::log4, {0x80, 0x3f, 0x80, 0x3f, 0x10}, 2));
  EXPECT_TRUE(refuses(ValueCoder::sign, {0, 0, 0}, 1));
  EXPECT_TRUE(refuses(ValueCoder::sign, {0x80, 0x7f, 0}, 1));
  EXPECT_TRUE(refuses(ValueCoder::sign, {0x80, 0xbf, 0}, 1));
  EXPECT_TRUE(refuses(ValueCoder::sign, {0x80, 0x3f, 2}, 1));
  EXPECT_TRUE(refuses(ValueCoder::sign, {0x80, 0x3f}, 1));
  EXPECT_TRUE(refuses(static_cast<ValueCoder>(6), {0, 0, 0, 0}, 1));
  EXPECT_TRUE(refuses(ValueCoder::f32, {}, 0));
}

}  // namespace
}  // namespace thinwire
