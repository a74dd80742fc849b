// polling_test.cc: the thread of delayed averaging leaves the processor to the training: it looks
// now and then whether a message has arrived, whether somebody waits for it or not.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "tests/exchange/forwarding.h"
#include "thinwire/delay/pipeline.h"
#include "thinwire/thinwire.h"

namespace thinwire::polling {

using Clock = std::chrono::steady_clock;
constexpr auto under_way = std::chrono::milliseconds(300);

// Its sums take a while, and count how often somebody looks.
class Watched final : public testing::Forwarding {
 public:
  using Forwarding::Forwarding;
  std::atomic<int> looks = 0;

  Pending all_reduce(Bytes data, DType dtype, ReduceOp op, Stream stream) override {
    Forwarding::all_reduce(data, dtype, op, stream).wait();
    return Pending(std::make_unique<Slow>(looks));
  }

 private:
  class Slow final : public Pending::Work {
   public:
    explicit Slow(std::atomic<int>& looks) : looks_(looks) {}
    void wait() override { std::this_thread::sleep_until(end_); }
    bool done() override {
      ++looks_;
      return Clock::now() >= end_;
    }
    Cost cost() const override { return {}; }

   private:
    std::atomic<int>& looks_;
    Clock::time_point end_ = Clock::now() + under_way;
  };
};

// At most one look every 300 microseconds while a caller waits; else ever fewer.
TEST(Pipeline, LooksNowAndThen) {
  for (const bool waits : {false, true}) {
    run_local(1, [&](Group& group) {
      Watched line(group);
      Pipeline rounds(line, {Bucket::single(0, "w", 4)}, Config::parse("dense"), 1, false);
      rounds.start({std::vector<float>(4)});
      while (!waits && !rounds.ready()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      rounds.take();
      EXPECT_GT(line.looks, 1) << waits;
      EXPECT_LE(line.looks, waits ? 1001 : 200) << waits;
    });
  }
}

}  // namespace thinwire::polling
