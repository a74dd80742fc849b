// sign_test.cc: onebit and efsign against their definitions in double precision, their groups, and
// payloads that a decoder must reject.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/compress/sign.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "tests/gradients.h"
#include "thinwire/compress/registry.h"
#include "thinwire/core/parallel.h"
#include "thinwire/wire/block.h"

namespace thinwire {
namespace {

using namespace testing;

std::vector<std::byte> encode(SignCodec& codec, std::span<const float> g, std::span<float> r) {
  std::vector<std::byte> payload(codec.payload_bytes());
  const Coded coded = codec.encode(g, r, 0, payload);
  EXPECT_TRUE(coded.finite);
  EXPECT_EQ(coded.bytes, payload.size());
  return payload;
}

std::vector<float> decode(const SignCodec& codec, ConstBytes payload, std::size_t count) {
  std::vector<float> out(count);
  EXPECT_TRUE(codec.add(payload, 1.0f, out).ok());
  return out;
}

// What receivers should decode for a group, directly from the papers.
std::vector<double> expected_of(SignLevels levels, std::span<const float> x) {
  double high = 0, low = 0, all = 0, highs = 0, lows = 0;
  for (const float value : x) {
    (value < 0 ? low : high) += static_cast<double>(value);
    (value < 0 ? lows : highs) += 1;
    all += std::fabs(static_cast<double>(value));
  }
  high = highs == 0 ? 0 : high / highs;
  low = lows == 0 ? 0 : low / lows;
  if (levels == SignLevels::magnitude) {
    high = all / static_cast<double>(x.size());
    low = -high;
  }
  std::vector<double> out;
  for (const float value : x) out.push_back(value < 0 ? low : high);
  return out;
}

// Adding all payloads tile by tile equals adding them one after another. The first bad
// payload is named.
TEST(SignCodec, AverageIsTheSumOfAll) {
  const std::vector<SignGroup> groups = {{0, 13}, {13, 700}, {713, 140000}, {140713, 9001}};
  const std::size_t count = 149714, ranks = 3;
  for (const SignLevels levels : {SignLevels::two_means, SignLevels::magnitude}) {
    SignCodec codec(levels, groups);
    std::vector<std::vector<std::byte>> payloads;
    std::vector<float> one_by_one(count), together = gradient(Shape::normal, count, 9);
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      payloads.push_back(encode(codec, gradient(Shape::heavy, count, rank), {}));
      ASSERT_TRUE(codec.add(payloads[rank], 0.3f, one_by_one).ok());
    }
    const std::vector<ConstBytes> views(payloads.begin(), payloads.end());
    for (const int threads : {1, 3}) {
      set_threads(threads);
      int culprit = -1;
      EXPECT_TRUE(codec.average(views, 0.3f, together, culprit).ok());
      EXPECT_TRUE(same_bits(together, one_by_one));
    }
    // The level of rank 2's last group, then that of rank 1's first one.
    const std::size_t level = levels == SignLevels::two_means ? 8 : 4;
    for (const auto& [rank, at] : {std::pair{2, 3 * level}, std::pair{1, std::size_t{0}}}) {
      payloads[static_cast<std::size_t>(rank)][at + 3] = std::byte{0xff};
      int culprit = -1;
      EXPECT_EQ(codec.average(views, 0.3f, together, culprit).code, Code::bad_value);
      EXPECT_EQ(culprit, rank);
    }
    set_threads(1);
  }
}

TEST(SignCodec, IsThePapers) {
  const std::vector<SignGroup> groups = {{0, 1}, {1, 700}, {701, 64}, {765, 100000}};
  const std::size_t count = 100765;
  for (const SignLevels levels : {SignLevels::two_means, SignLevels::magnitude}) {
    SignCodec codec(levels, groups);
    std::vector<float> r = gradient(Shape::heavy, count, 1);
    for (std::uint64_t step = 0; step < 3; ++step) {
      const auto g = gradient(Shape::heavy, count, step + 2);
      std::vector<float> x(count);
      for (std::size_t i = 0; i < count; ++i) x[i] = g[i] + r[i];
      const auto sent = decode(codec, encode(codec, g, r), count);
      for (const SignGroup& group : groups) {
        const auto expected = expected_of(levels, std::span(x).subspan(group.first, group.count));
        for (std::size_t i = 0; i < group.count; ++i) {
          const std::size_t at = group.first + i;
          ASSERT_NEAR(sent[at], expected[i], 1e-6 * std::fabs(expected[i])) << at;
          ASSERT_EQ(r[at], x[at] - sent[at]);
        }
      }
    }
  }
}

TEST(SignCodec, ZerosAreZeroAndOneSidedGroupsToo) {
  SignCodec one(SignLevels::magnitude, {{0, 3}, {3, 2}}),
      two(SignLevels::two_means, {{0, 3}, {3, 2}});
  const std::vector<float> g = {0, -0.0f, 0, 0, -2};
  EXPECT_EQ(decode(one, encode(one, g, {}), 5), (std::vector<float>{0, 0, 0, 1, -1}));
  EXPECT_EQ(decode(two, encode(two, g, {}), 5), (std::vector<float>{0, 0, 0, 0, -2}));
  // If a mean is below the smallest float, its signs are lost too.
  std::vector<float> tiny(5), r(5);
  tiny[1] = -std::numeric_limits<float>::denorm_min();
  EXPECT_EQ(decode(one, encode(one, tiny, r), 5), std::vector<float>(5));
  EXPECT_EQ(r, tiny);
}

TEST(SignCodec, GroupsBeyondTheLimitSendNothingAndTakeInTheRest) {
  for (const SignLevels levels : {SignLevels::two_means, SignLevels::magnitude}) {
    SignCodec codec(levels, {{0, 100}, {100, 100}});
    auto g = gradient(Shape::normal, 200, 1);
    auto r = gradient(Shape::normal, 200, 2);
    const auto before = r;
    g[150] = std::numeric_limits<float>::infinity();
    std::vector<std::byte> payload(codec.payload_bytes());
    EXPECT_FALSE(codec.encode(g, r, 0, payload).finite);
    for (std::size_t i = 100; i < 200; ++i)
      EXPECT_EQ(r[i], i == 150 ? before[i] : before[i] + g[i]) << i;
    const auto sent = decode(codec, payload, 200);
    EXPECT_EQ(norm(std::span(sent).last(100)), 0);
  }
}

TEST(SignCodec, SameBitsWithAnyNumberOfThreads) {
  const std::size_t count = 500003;
  std::vector<SignGroup> groups = {{0, 300001}};
  cut_evenly(300001, count - 300001, 777, groups);
  const auto g = gradient(Shape::heavy, count, 1);
  std::vector<std::byte> first;
  std::vector<float> kept;
  for (const int number : {1, 2, 5}) {
    set_threads(number);
    SignCodec codec(SignLevels::two_means, groups);
    std::vector<float> r(count);
    const auto payload = encode(codec, g, r);
    if (number == 1) {
      first = payload;
      kept = r;
    }
    EXPECT_EQ(payload, first) << number;
    EXPECT_TRUE(same_bits(r, kept)) << number;
  }
  set_threads(1);
}

std::size_t bytes_of(const std::string& config, const Bucket& bucket) {
  const Config parsed = Config::parse(config);
  const Scheme& scheme = find_scheme(parsed.scheme);
  return scheme.bytes(Options(parsed, scheme.options), bucket) - block_header_bytes;
}

TEST(Onebit, GroupsAreRowsJoinedOrCut) {
  const auto one = [](std::size_t count, std::vector<std::int64_t> shape) {
    return Bucket{0, {{"w", 0, count, std::move(shape)}}};
  };
  EXPECT_EQ(bytes_of("onebit", one(64 * 576, {64, 64, 3, 3})), 64 * (8 + 72));
  EXPECT_EQ(bytes_of("onebit", one(64 * 27, {64, 3, 3, 3})),
            3 * 8 + 71 + 71 + 75);  // 21, 21, 22 rows
  EXPECT_EQ(bytes_of("onebit:group=1", one(64 * 27, {64, 3, 3, 3})), 64 * (8 + 4));
  EXPECT_EQ(bytes_of("onebit", one(10, {})), 8 + 2);
  EXPECT_EQ(bytes_of("onebit", one(0, {0, 5})), 0);
  EXPECT_EQ(bytes_of("onebit", one(40000, {2, 20000})), 4 * (8 + 1250));  // rows cut in two
  EXPECT_EQ(bytes_of("onebit", one(1 << 20, {})), 64 * (8 + 2048));
  EXPECT_EQ(bytes_of("onebit", one(1001, {4, 5})), 8 + 126);  // a slice: one row
  // If groups are large, a row of up to two groups stays whole.
  EXPECT_EQ(bytes_of("onebit:group=10000", one(20000, {})), 8 + 2500);
  EXPECT_EQ(bytes_of("onebit:group=10000", one(20008, {})), 2 * 8 + 1251 + 1251);
}

// The payload of one group of 11, with one error.
struct Forged {
  float high, low;
  std::uint8_t bits[2];
};

Code answer(SignLevels levels, const Forged& forged) {
  std::vector<std::byte> payload(levels == SignLevels::two_means ? 10 : 6);
  std::memcpy(payload.data(), &forged.high, 4);
  if (levels == SignLevels::two_means) std::memcpy(payload.data() + 4, &forged.low, 4);
  std::memcpy(payload.data() + payload.size() - 2, forged.bits, 2);
  std::vector<float> target(11);
  return SignCodec(levels, {{0, 11}}).add(payload, 1, target).code;
}

TEST(SignCodec, RefusesWhatNoEncoderWrites) {
  constexpr float inf = std::numeric_limits<float>::infinity();
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  constexpr auto two = SignLevels::two_means, one = SignLevels::magnitude;
  EXPECT_EQ(answer(two, {1, -1, {1, 0}}), Code::ok);
  EXPECT_EQ(answer(two, {0, -1, {0xff, 7}}), Code::ok);
  EXPECT_EQ(answer(two, {1, 0, {0, 0}}), Code::ok);
  for (const Forged& bad : {Forged{inf, -1, {1, 0}},
                            {nan, -1, {1, 0}},
                            {-1, -1, {1, 0}},
                            {-0.0f, -1, {1, 0}},
                            {1, -inf, {1, 0}},
                            {1, nan, {1, 0}},
                            {1, 1, {1, 0}},
                            {1, 0, {1, 0}},
                            {1, -1, {0, 0}},
                            {1, -0.0f, {0, 0}},
                            {1, -1, {0xff, 7}},
                            {1, -1, {1, 8}}}) {
    EXPECT_EQ(answer(two, bad), Code::bad_value)
        << bad.high << ' ' << bad.low << ' ' << int{bad.bits[0]};
  }
  EXPECT_EQ(answer(one, {1, 0, {1, 0}}), Code::ok);
  EXPECT_EQ(answer(one, {0, 0, {0, 0}}), Code::ok);
  for (const Forged& bad : {Forged{0, 0, {1, 0}},
                            {-0.0f, 0, {0, 0}},
                            {-1, 0, {1, 0}},
                            {inf, 0, {1, 0}},
                            {nan, 0, {1, 0}},
                            {1, 0, {1, 8}}}) {
    EXPECT_EQ(answer(one, bad), Code::bad_value) << bad.high << ' ' << int{bad.bits[0]};
  }
  const SignCodec codec(two, {{0, 11}});
  std::vector<float> target(11);
  for (const std::size_t size : {0u, 9u, 11u})
    EXPECT_EQ(codec.add(std::vector<std::byte>(size), 1, target).code, Code::mismatch);
}

}  // namespace
}  // namespace thinwire
