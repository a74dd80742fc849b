// core_test.cc: checksum, random numbers, parallel loops, options, views.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "tests/gradients.h"
#include "thinwire/core/crc32c.h"
#include "thinwire/core/crc32c_rule.h"
#include "thinwire/core/error.h"
#include "thinwire/core/options.h"
#include "thinwire/core/parallel.h"
#include "thinwire/core/random.h"
#include "thinwire/core/view.h"

namespace thinwire {
namespace {

using testing::error_of;

TEST(Crc32c, KnownValue) {
  const std::string digits = "123456789";
  EXPECT_EQ(crc32c(std::as_bytes(std::span(digits))), 0xe3069283u);
  EXPECT_EQ(crc32c_reference(std::as_bytes(std::span(digits))), 0xe3069283u);
  EXPECT_EQ(crc32c({}), 0u);
}

TEST(Crc32c, FastEqualsReferenceAtEverySizeAndOffset) {
  std::vector<std::byte> bytes(700);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(random_at(1, i));
  for (std::size_t offset = 0; offset < 9; ++offset) {
    for (std::size_t size = 0; size + offset <= bytes.size(); size += 1 + size / 16) {
      const ConstBytes piece = std::span(bytes).subspan(offset, size);
      ASSERT_EQ(crc32c(piece), crc32c_reference(piece)) << offset << " " << size;
      const std::size_t cut = size / 3;
      ASSERT_EQ(crc32c(piece.subspan(cut), crc32c(piece.first(cut))), crc32c(piece));
    }
  }
}

// More bytes than an int can count. Pages of zeros that are only read take no memory.
TEST(Crc32c, CombinesPieces) {
  std::vector<std::byte> bytes(70001);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(random_at(5, i));
  const std::span<const std::byte> all(bytes);
  for (const std::size_t size : {0u, 1u, 2u, 7u, 255u, 256u, 257u, 4096u, 65537u, 70001u}) {
    const auto piece = all.first(size);
    for (const std::size_t cut : {0u, 1u, 3u, 4u, 127u, 128u, 4095u, 65536u, 70000u}) {
      if (cut > size) continue;
      const std::uint32_t head = crc32c(piece.first(cut)), tail = crc32c(piece.subspan(cut));
      ASSERT_EQ(crc32c_combine(head, tail, size - cut), crc32c(piece)) << size << " at " << cut;
    }
  }
}

TEST(Crc32c, TakesZerosBehindBack) {
  const Crc32cPowers powers = crc32c_powers();
  for (std::uint32_t bytes = 0; bytes < 20; ++bytes) {
    const auto crc = static_cast<std::uint32_t>(random_at(6, bytes));
    ASSERT_EQ(crc32c_unshift(crc32c_shift(crc, bytes, powers), bytes), crc) << bytes;
  }
}

// What decoders on a GPU rely on: the sum of two messages, one shifted against the other, has the
// sum of their checksums, one of them shifted. (Less the checksums of zeros: they are affine.)
TEST(Crc32c, OfAShiftedSumIsTheShiftedSum) {
  constexpr std::size_t size = 1000, shift = 16;
  std::vector<std::byte> a(size + shift), b(size + shift), sum(size + shift), zeros(size + shift);
  for (std::size_t i = 0; i < size; ++i) {
    a[i] = static_cast<std::byte>(random_at(7, i));
    b[i + shift] = static_cast<std::byte>(random_at(8, i));
  }
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = a[i] ^ b[i];
  const auto plain = [&](std::span<const std::byte> bytes) {
    return crc32c(bytes) ^ crc32c(std::span(zeros).first(bytes.size()));
  };
  const std::span<const std::byte> first(a), second(b);
  EXPECT_EQ(plain(sum), crc32c_shift(plain(first.first(size)), shift, crc32c_powers()) ^
                            plain(second.subspan(shift)));
}

TEST(Crc32c, CountsBeyondTwoToThe31) {
  const std::size_t size = (std::size_t{1} << 31) + 5, half = size / 2;
  const std::unique_ptr<void, decltype(&std::free)> zeros(std::calloc(size, 1), &std::free);
  ASSERT_NE(zeros, nullptr);
  const ConstBytes bytes(static_cast<const std::byte*>(zeros.get()), size);
  EXPECT_EQ(crc32c(bytes), crc32c(bytes.subspan(half), crc32c(bytes.first(half))));
}

TEST(Random, IsAFunctionOfSeedAndCounter) {
  EXPECT_EQ(random_at(7, 3), random_at(7, 3));
  EXPECT_NE(random_at(7, 3), random_at(7, 4));
  EXPECT_NE(random_at(7, 3), random_at(8, 3));
}

TEST(Random, UnitIsUniform) {
  double sum = 0, squares = 0;
  const int n = 100000;
  for (int i = 0; i < n; ++i) {
    const double x = random_unit(42, static_cast<std::uint64_t>(i));
    ASSERT_GE(x, 0);
    ASSERT_LT(x, 1);
    sum += x;
    squares += x * x;
  }
  EXPECT_NEAR(sum / n, 0.5, 0.005);
  EXPECT_NEAR(squares / n, 1.0 / 3, 0.005);
}

TEST(Parallel, RunsEachPieceOnce) {
  for (const int count : {1, 2, 5}) {
    set_threads(count);
    for (const std::size_t pieces : {0u, 1u, 2u, 3u, 1000u}) {
      std::vector<std::atomic<int>> seen(pieces);
      parallel_for(pieces, [&](std::size_t i) { ++seen[i]; });
      for (const auto& times : seen) EXPECT_EQ(times, 1);
    }
  }
  set_threads(1);
}

TEST(Parallel, LoopsFromSeveralThreadsAllFinish) {
  set_threads(3);
  std::atomic<int> total{0};
  std::vector<std::thread> callers;
  for (int c = 0; c < 4; ++c) {
    callers.emplace_back([&] {
      for (int i = 0; i < 100; ++i) parallel_for(7, [&](std::size_t) { ++total; });
    });
  }
  for (auto& caller : callers) caller.join();
  EXPECT_EQ(total, 4 * 100 * 7);
  set_threads(1);
}

TEST(Config, RoundTrips) {
  const Config config = Config::parse("dgc:values=sign,density=0.01");
  EXPECT_EQ(config.scheme, "dgc");
  EXPECT_EQ(config.str(), "dgc:density=0.01,values=sign");
  EXPECT_EQ(Config::parse("dense").str(), "dense");
}

TEST(Config, RefusesBadSyntax) {
  EXPECT_NE(error_of([] { (void)Config::parse(""); }).find("expected NAME"), std::string::npos);
  EXPECT_NE(error_of([] { (void)Config::parse("dgc:density"); }).find("expected KEY=VALUE"),
            std::string::npos);
  EXPECT_NE(error_of([] { (void)Config::parse("dgc:a=1,a=2"); }).find("twice"), std::string::npos);
}

TEST(Options, ReadsWithRange) {
  const std::vector<Option> known = {
      {"density", "0.001", ""}, {"feedback", "on", ""}, {"steps", "4", ""}};
  const Options options(Config::parse("x:density=1"), known);
  EXPECT_EQ(options.number("density", 0, 1), 1.0);
  EXPECT_TRUE(options.flag("feedback"));
  EXPECT_EQ(options.integer("steps", 0, 10), 4);
  for (const char* bad : {"0", "-1", "1.01", "nan", "inf", "", "x", "1x"}) {
    const Options wrong(Config{"x", {{"density", bad}}}, known);
    const std::string text = error_of([&] { (void)wrong.number("density", 0, 1); });
    EXPECT_NE(text.find("'density'"), std::string::npos) << bad;
  }
  EXPECT_NE(
      error_of([&] { Options(Config::parse("x:dens=1"), known); }).find("density, feedback, steps"),
      std::string::npos);
}

TEST(Bucket, RefusesGapsAndDoubles) {
  EXPECT_EQ(error_of([] { validate(Bucket{3, {{"a", 0, 5, {}}, {"b", 5, 2, {}}}}); }), "");
  EXPECT_NE(error_of([] {
              validate(Bucket{3, {{"a", 0, 5, {}}, {"b", 6, 2, {}}}});
            }).find("expected offset 5"),
            std::string::npos);
  EXPECT_NE(error_of([] {
              validate(Bucket{3, {{"a", 0, 5, {}}, {"a", 5, 2, {}}}});
            }).find("twice"),
            std::string::npos);
  EXPECT_NE(error_of([] {
              validate(Bucket{3, {{"a", 0, std::size_t{1} << 32, {}}}});
            }).find("split it"),
            std::string::npos);
}

}  // namespace
}  // namespace thinwire
