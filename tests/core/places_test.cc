// places_test.cc: where memory lies, what becomes of it, what a verdict packs, and how a device is
// waited for.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <set>

#include "tests/gradients.h"
#include "thinwire/core/buffer.h"
#include "thinwire/core/parallel.h"
#include "thinwire/core/poll.h"
#include "thinwire/core/verdict.h"

namespace thinwire::places {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

TEST(Place, OfTheCpuIsItsOwnMemory) {
  const Device cpu, gpu{Device::Kind::cuda, 1};
  EXPECT_EQ(place_on(cpu), Place::host);
  EXPECT_EQ(place_beside(cpu), Place::host);
  EXPECT_EQ(place_on(gpu), Place::cuda);
  EXPECT_EQ(place_beside(gpu), Place::pinned);
}

// Memory comes back from earlier buffers, with what was in it.
TEST(Buffer, GivesItsMemoryBackAndGetsZeros) {
  std::set<const void*> places;
  for (int i = 0; i < 64; ++i) {
    const Buffer buffer(Place::host, 4096);
    places.insert(buffer.data());
    EXPECT_EQ(std::count(buffer.data(), buffer.data() + 4096, std::byte{0}), 4096) << i;
    std::memset(buffer.data(), 0xff, 4096);
  }
  EXPECT_TRUE(testing::sanitized || places.size() < 64);
}

TEST(OwnStream, CopiesAndClearsSingleBytes) {
  const OwnStream stream{Device{}};
  std::byte from{7}, to{0};
  stream.copy(&to, &from, 1);
  EXPECT_EQ(to, from);
  stream.zero(&to, 1);
  EXPECT_EQ(to, std::byte{0});
  stream.zero(nullptr, 0);
}

TEST(Verdict, AFaultTellsCodeRankAndBucket) {
  for (const Code code : {Code::truncated, Code::bad_checksum, Code::mismatch}) {
    for (const std::uint32_t rank : {0u, 1u, 5u, 65535u}) {
      for (const std::uint32_t bucket : {0u, 1u, 6u, 255u, 256u, 65535u}) {
        const std::uint64_t fault = fault_of(code, rank, bucket);
        EXPECT_NE(fault, 0u);
        EXPECT_EQ(code_of(fault), code);
        EXPECT_EQ(rank_of(fault), static_cast<int>(rank));
        EXPECT_EQ(bucket_of(fault), static_cast<int>(bucket));
      }
    }
  }
}

TEST(Verdict, AStepIsVoidWhenSkippedOrFaulty) {
  EXPECT_EQ(Verdict().unsound, 0u);
  EXPECT_FALSE(Verdict().void_step());
  EXPECT_FALSE((Verdict{1, 0, 0}.void_step()));  // the others do not know yet
  EXPECT_TRUE((Verdict{0, 1, 0}.void_step()));
  EXPECT_TRUE((Verdict{0, 0, fault_of(Code::truncated, 0, 0)}.void_step()));
}

TEST(Poll, EndsWhenItIsDoneOrAtTheLimit) {
  EXPECT_TRUE(poll([] { return true; }, milliseconds(0)));
  int looks = 0;
  EXPECT_TRUE(poll([&] { return ++looks == 3; }, std::chrono::minutes(10)));
  EXPECT_EQ(looks, 3);
  const auto start = Clock::now();
  EXPECT_FALSE(poll([] { return false; }, milliseconds(30)));
  EXPECT_GE(Clock::now() - start, milliseconds(30));
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(10));
}

// After the first few milliseconds the processor is left to others.
TEST(Poll, LooksNowAndThen) {
  int late = 0;
  const auto start = Clock::now();
  poll(
      [&] {
        late += Clock::now() - start > milliseconds(10) ? 1 : 0;
        return false;
      },
      milliseconds(110));
  EXPECT_LE(late, 100'000 / 50 + 5);
}

// A loop inside a piece, and one beside it, run on their caller's thread, each piece once.
TEST(Parallel, LoopsWithinLoopsRunEachPieceOnce) {
  set_threads(3);
  for (int round = 0; round < 50; ++round) {
    std::vector<int> seen(6 * 5);
    parallel_for(
        6, [&](std::size_t i) { parallel_for(5, [&](std::size_t k) { ++seen[5 * i + k]; }); });
    ASSERT_EQ(std::ranges::count(seen, 1), 30) << round;
  }
  set_threads(1);
}

}  // namespace thinwire::places
