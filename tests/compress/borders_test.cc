// borders_test.cc: where a unit of work, a word of bits or a payload ends: one element less and one
// more, at every place, for every codec that has such a border.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "tests/gradients.h"
#include "thinwire/compress/registry.h"
#include "thinwire/compress/sign.h"
#include "thinwire/compress/threshold_codec.h"
#include "thinwire/wire/block.h"
#include "thinwire/wire/elias.h"
#include "thinwire/wire/quanta.h"

namespace thinwire::borders {

using namespace testing;

// One worker's step; the average is what was sent.
static std::vector<float> sent_of(const std::string& config, const Bucket& bucket,
                                  std::vector<float> values) {
  const auto compressor = make_compressor(Config::parse(config), bucket, {0, 1});
  for (int round = 0; round < compressor->rounds(); ++round) {
    const Turn turn{0, round, {}, 0};
    const std::size_t bytes = compressor->leg(0, round).bytes;
    std::vector<std::byte> out(bytes);
    const std::size_t sizes[] = {compressor->encode(turn, values, out)};
    const bool slots = compressor->leg(0, round).reduction == Reduction::gather;
    const Inbox inbox{out, slots ? bytes : 0,
                      slots ? std::span<const std::size_t>(sizes) : std::span<const std::size_t>()};
    EXPECT_TRUE(compressor->decode(turn, inbox, values).ok()) << config << " " << values.size();
  }
  return values;
}

// ---- units of work ----

// Elements of one magnitude arrive as they are, where a unit ends and the next one begins.
TEST(Borders, SignsArriveOnBothSidesOfEveryUnit) {
  const std::pair<const char*, std::vector<std::size_t>> cases[] = {
      {"efsign:group=0", {65535, 65536, 65537, 131071, 131072}},
      {"signum:momentum=0", {4095, 4096, 4097, 131071, 131072, 131073}},
      {"signum:momentum=0,travel=sum", {131071, 131072, 131073}},
      {"threshold:tau=1", {4095, 131071, 131072, 131073}},
      {"terngrad:clip=0", {20479, 20480, 20481}},
      {"terngrad:clip=0,travel=sum", {20479, 20480, 20481}},
      {"natural", {8191, 8192, 8193}},
      {"randomk:density=1,block=5000", {4999, 5000, 5001, 15000}},
  };
  for (const auto& [config, lengths] : cases) {
    for (const std::size_t count : lengths) {
      std::vector<float> values(count);
      for (std::size_t i = 0; i < count; ++i)
        values[i] = random_below(count, i, 2) == 0 ? 1.0f : -1.0f;
      EXPECT_TRUE(same_bits(sent_of(config, Bucket::single(0, "w", count), values), values))
          << config << " " << count;
    }
  }
}

// Groups of nearly equal length, as few as the longest allows.
TEST(SignCodec, CutsEvenly) {
  for (std::size_t count = 1; count <= 40; ++count) {
    for (std::size_t longest = 1; longest <= 41; ++longest) {
      std::vector<SignGroup> groups;
      cut_evenly(7, count, longest, groups);
      ASSERT_EQ(groups.size(), (count - 1) / longest + 1) << count << " by " << longest;
      std::size_t next = 7;
      for (const SignGroup& group : groups) {
        ASSERT_EQ(group.first, next);
        ASSERT_GE(group.count, count / groups.size());
        ASSERT_LE(group.count, (count - 1) / groups.size() + 1);
        next += group.count;
      }
      ASSERT_EQ(next, 7 + count);
    }
  }
}

// A long group is summed in blocks of 65536, on a GPU too. That shows where a mean lies between two
// floats: eights that are added one by one to 2^60 are lost, their sum is not.
TEST(SignCodec, LongGroupsAreSummedInBlocks) {
  const std::size_t count = std::size_t{1} << 18;
  const auto high_of = [&](std::size_t eights) {
    SignCodec codec(SignLevels::two_means, {{0, count}});
    std::vector<float> g(count);
    g[0] = 0x1p60f;
    g[128] = 0x1p36f;
    for (std::size_t i = 0; i < 64; ++i) g[eights + 128 * i] = 8;
    std::vector<std::byte> payload(codec.payload_bytes());
    EXPECT_TRUE(codec.encode(g, {}, 0, payload).finite);
    float high = 0;
    std::memcpy(&high, payload.data(), sizeof high);
    return high;
  };
  EXPECT_EQ(high_of(32768), 0x1p42f);
  EXPECT_EQ(high_of(65536), 0x1p42f * (1 + 0x1p-23f));
}

// Of a group that is longer than a block, too.
TEST(SignCodec, LongBadGroupsTakeInTheRest) {
  const std::size_t count = 70000;
  SignCodec codec(SignLevels::magnitude, {{0, count}});
  const auto g = gradient(Shape::normal, count, 1);
  std::vector<float> bad = g, r(count, 1.0f);
  bad[3] = bad[69999] = std::numeric_limits<float>::quiet_NaN();
  std::vector<std::byte> payload(codec.payload_bytes());
  EXPECT_FALSE(codec.encode(bad, r, 0, payload).finite);
  for (std::size_t i = 0; i < count; ++i)
    ASSERT_EQ(r[i], i == 3 || i == 69999 ? 1.0f : 1.0f + g[i]) << i;
}

// ---- bits ----

// A side without an element has the level 0, and only such a side: found in bits of any number.
TEST(SignCodec, LevelsMustFitTheirBitsAnywhere) {
  for (std::size_t count = 1; count <= 200; ++count) {
    const std::size_t bits = (count + 7) / 8;
    const SignCodec two(SignLevels::two_means, {{0, count}, {count, 64}});
    const SignCodec one(SignLevels::magnitude, {{0, count}, {count, 64}});
    // The second group has bits of both kinds, which are no business of the first.
    const auto code = [&](float high, float low, ConstBytes of_first) {
      std::vector<float> levels = {high, low, 1, -1}, target(count + 64);
      std::vector<std::byte> payload(16 + bits + 8, std::byte{0x0f});
      std::memcpy(payload.data(), levels.data(), 16);
      std::ranges::copy(of_first, payload.begin() + 16);
      return two.add(payload, 1, target).code;
    };
    const auto magnitude = [&](float high, ConstBytes of_first) {
      std::vector<float> levels = {high, 1}, target(count + 64);
      std::vector<std::byte> payload(8 + bits + 8, std::byte{0x0f});
      std::memcpy(payload.data(), levels.data(), 8);
      std::ranges::copy(of_first, payload.begin() + 8);
      return one.add(payload, 1, target).code;
    };
    std::vector<std::byte> none(bits), all(bits);
    for (std::size_t i = 0; i < count; ++i) all[i / 8] |= std::byte{1} << i % 8;
    EXPECT_EQ(code(1, 0, none), Code::ok) << count;
    EXPECT_EQ(code(1, -1, none), Code::bad_value) << count;
    EXPECT_EQ(code(0, -1, all), Code::ok) << count;
    EXPECT_EQ(code(1, -1, all), Code::bad_value) << count;
    EXPECT_EQ(magnitude(0, none), Code::ok) << count;
    for (std::size_t i = 0; i < count; ++i) {
      const std::byte bit = std::byte{1} << i % 8;
      std::vector<std::byte> lone = none, most = all;
      lone[i / 8] |= bit;
      most[i / 8] ^= bit;
      ASSERT_EQ(code(1, 0, lone), Code::bad_value) << i << " of " << count;
      ASSERT_EQ(code(1, -1, lone), count == 1 ? Code::bad_value : Code::ok) << i;
      ASSERT_EQ(code(1, -1, most), count == 1 ? Code::bad_value : Code::ok) << i;
      ASSERT_EQ(magnitude(0, lone), Code::bad_value) << i << " of " << count;
    }
    for (std::size_t i = count; i < 8 * bits; ++i) {
      std::vector<std::byte> padded = none;
      padded.back() |= std::byte{1} << i % 8;
      ASSERT_EQ(code(1, -1, padded), Code::bad_value) << i << " of " << count;
      ASSERT_EQ(magnitude(1, padded), Code::bad_value) << i << " of " << count;
    }
  }
}

// An element has one sign, and the padding none, wherever they are.
TEST(Quanta, BothSignsAndPaddingAreUnsoundAnywhere) {
  for (std::uint32_t count = 1; count <= 200; ++count) {
    const std::size_t bits = quanta_plane_bytes(count);
    for (std::size_t i = 0; i < 8 * bits; ++i) {
      const auto sound = [&](bool plus, bool minus) {
        std::vector<std::byte> block(quanta_dense_bytes(count));
        if (plus) block[i / 8] |= std::byte{1} << i % 8;
        if (minus) block[bits + i / 8] |= std::byte{1} << i % 8;
        return quanta_dense_is_sound(block, count);
      };
      ASSERT_EQ(sound(true, false), i < count) << i << " of " << count;
      ASSERT_EQ(sound(false, true), i < count) << i << " of " << count;
      ASSERT_FALSE(sound(true, true)) << i << " of " << count;
    }
  }
}

// ---- payloads ----

// A bucket without elements has a payload of nothing but its head.
TEST(Borders, NothingIsSentOfNothing) {
  for (const char* config : {"threshold", "threshold:quota=bucket,tau=1", "natural", "int8", "qsgd",
                             "qsgd:form=coded", "onebit", "efsign", "atomo", "signum", "topk",
                             "terngrad", "terngrad:travel=sum", "csc", "randomk", "powersgd"})
    EXPECT_TRUE(sent_of(config, Bucket{0, {}}, {}).empty()) << config;
}

// The longest payload of coded levels: a norm and the bound of its code for each bucket.
TEST(Qsgd, CodedPayloadsHaveTheBoundOfTheirBuckets) {
  for (const std::size_t count : {1u, 63u, 64u, 65u, 128u, 511u}) {
    for (const unsigned bits : {1u, 8u}) {
      const auto compressor =
          make_compressor(Config::parse("qsgd:form=coded,bucket=64,bits=" + std::to_string(bits)),
                          Bucket::single(0, "w", count), {0, 1});
      std::size_t bytes = block_header_bytes;
      for (std::size_t at = 0; at < count; at += 64)
        bytes += sizeof(float) + elias_bound(std::min<std::size_t>(64, count - at), bits);
      EXPECT_EQ(compressor->leg(0, 0).bytes, bytes) << count;
    }
  }
}

// The largest bucket, and norms of any size.
TEST(Qsgd, CodedLevelsAreThoseOfThePackedForm) {
  for (const char* bucket : {"64", "8192"}) {
    for (const float scale : {1e-6f, 1.0f, 1e6f}) {
      std::vector<float> g = gradient(Shape::normal, 9000, 1);
      for (float& x : g) x *= scale;
      const std::string common = std::string("qsgd:memory=none,bucket=") + bucket;
      const Bucket all = Bucket::single(0, "w", g.size());
      const auto packed = sent_of(common, all, g), coded = sent_of(common + ",form=coded", all, g);
      EXPECT_TRUE(same_bits(packed, coded)) << bucket << " " << scale;
      EXPECT_GT(norm(packed), 0.9 * norm(g));
    }
  }
}

// One level above the top is none that an encoder with so many bits writes.
TEST(Qsgd, CodedLevelsGoUpToTheTop) {
  for (unsigned bits = 1; bits <= 7; ++bits) {
    const auto compressor =
        make_compressor(Config::parse("qsgd:form=coded,bits=" + std::to_string(bits)),
                        Bucket::single(0, "w", 64), {0, 1});
    for (const std::uint32_t above : {0u, 1u}) {
      std::uint8_t levels[64] = {}, signs[8] = {};
      levels[9] = static_cast<std::uint8_t>((1u << bits) - 1 + above);
      const float length = 1;
      std::vector<std::byte> frame(compressor->leg(0, 0).bytes + 8);
      const Bytes payload = block_payload(frame);
      std::memcpy(payload.data(), &length, sizeof length);
      const std::size_t bytes =
          sizeof length + elias_encode(levels, signs, 64, payload.subspan(sizeof length));
      const std::size_t sizes[] = {
          seal_block({.scheme = 10, .bucket = 0, .step = 0, .elements = 64}, bytes, frame)};
      std::vector<float> average(64);
      const Status status = compressor->decode({}, {frame, frame.size(), sizes}, average);
      EXPECT_EQ(status.code, above == 0 ? Code::ok : Code::bad_value) << bits << status.what;
    }
  }
}

}  // namespace thinwire::borders
