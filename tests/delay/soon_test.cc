// soon_test.cc: a message starts when it is given, though the thread sleeps, and is there as soon
// as it has arrived.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "tests/gradients.h"
#include "thinwire/delay/pipeline.h"
#include "thinwire/thinwire.h"

namespace thinwire::soon {

using Clock = std::chrono::steady_clock;

TEST(Pipeline, AMessageWakesTheThread) {
  run_local(1, [](Group& group) {
    Pipeline rounds(group, {Bucket::single(0, "w", 4)}, Config::parse("dense"), 1, false);
    std::this_thread::sleep_for(
        std::chrono::milliseconds(200));  // it has nothing to do, and sleeps
    rounds.start({std::vector<float>(4)});
    const auto limit = Clock::now() + std::chrono::seconds(10);
    while (!rounds.ready() && Clock::now() < limit)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_TRUE(rounds.ready());
  });
}

// Without the pause of 300 microseconds that comes before another look. The best of many, since the
// machine may be busy.
TEST(Pipeline, WhoWaitsGetsAnArrivalAtOnce) {
  if (testing::sanitized) GTEST_SKIP() << "a sanitizer takes as long as the pause";
  run_local(1, [](Group& group) {
    Pipeline rounds(group, {Bucket::single(0, "w", 4)}, Config::parse("dense"), 1, false);
    auto best = Clock::duration::max();
    for (int i = 0; i < 300; ++i) {
      const auto begin = Clock::now();
      rounds.start({std::vector<float>(4)});
      rounds.take();
      best = std::min(best, Clock::now() - begin);
    }
    EXPECT_LT(best, std::chrono::microseconds(300));
  });
}

}  // namespace thinwire::soon
