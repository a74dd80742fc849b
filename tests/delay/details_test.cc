// details_test.cc: what is easily overlooked in delayed averaging: the norm over all buckets, whose
// update overflowed, what a message's time is, and Adam's moments under every correction.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <thread>

#include "tests/delay/training.h"
#include "tests/exchange/lazy.h"
#include "thinwire/delay/pipeline.h"

namespace thinwire::details {

using namespace testing;

static const std::vector<Bucket> two = {Bucket::single(0, "a", 3), Bucket::single(1, "b", 2)};

static Values of(float value) {
  return {std::vector<float>(3, value), std::vector<float>(2, value)};
}

static bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

static DelayOptions options_of(const char* correction, std::uint64_t delay) {
  DelayOptions options;
  options.parse_correction(correction);
  options.delay = delay;
  return options;
}

// ---- messages ----

// 2 and 3 in one bucket, 6 in the other: a length of 7.
TEST(Pipeline, ClipsByTheNormOfTheWholeMessage) {
  run_local(1, [](Group& group) {
    Pipeline rounds(group, two, Config::parse("dgc:clip=1,density=1,momentum=0,values=f32"), 1,
                    false);
    for (int i = 0; i < 2; ++i) {
      rounds.start({{2, 3, 0}, {0, -6}});
      const Message mean = rounds.take().mean;
      EXPECT_NEAR(mean[0][0], 2.0 / 7, 1e-6);
      EXPECT_NEAR(mean[0][1], 3.0 / 7, 1e-6);
      EXPECT_NEAR(mean[1][1], -6.0 / 7, 1e-6);
    }
  });
}

TEST(Pipeline, TheGroupIsFreeBeforeTheFirstRound) {
  run_local(2, [](Group& group) {
    Pipeline rounds(group, two, Config::parse("dense"), 2, false);
    const auto lock = rounds.hold();
    EXPECT_TRUE(lock.owns_lock());
  });
}

// To agree on the first step takes this long; sums take `sum`.
class Slow final : public Forwarding {
 public:
  Slow(Group& inner, std::chrono::milliseconds agreement, std::chrono::milliseconds sum)
      : Forwarding(inner), agreement_(agreement), sum_(sum) {}

  Pending all_reduce(Bytes data, DType dtype, ReduceOp op, Stream stream) override {
    if (dtype == DType::i32) std::this_thread::sleep_for(agreement_);
    Forwarding::all_reduce(data, dtype, op, stream).wait();
    return Pending(std::make_unique<Work>(std::chrono::steady_clock::now() + sum_));
  }

 private:
  class Work final : public Pending::Work {
   public:
    explicit Work(std::chrono::steady_clock::time_point end) : end_(end) {}
    void wait() override { std::this_thread::sleep_until(end_); }
    bool done() override { return std::chrono::steady_clock::now() >= end_; }
    Cost cost() const override { return {}; }

   private:
    std::chrono::steady_clock::time_point end_;
  };

  std::chrono::milliseconds agreement_, sum_;
};

// Else the first of the measured rounds would always be the slowest.
TEST(Pipeline, ToAgreeIsNoPartOfAMessagesTime) {
  run_local(2, [](Group& group) {
    Slow line(group, std::chrono::milliseconds(400), std::chrono::milliseconds(0));
    Pipeline rounds(line, two, Config::parse("dense"), 1, false);
    rounds.start(of(1));
    const double seconds = rounds.take().seconds;
    EXPECT_GT(seconds, 0);
    EXPECT_LT(seconds, 0.8);  // there are two agreements
  });
}

// Nobody waits for it; the best of several, since the machine may be busy.
TEST(Pipeline, AShortMessageIsSeenSoon) {
  run_local(1, [](Group& group) {
    Slow line(group, std::chrono::milliseconds(0), std::chrono::milliseconds(4));
    Pipeline rounds(line, {two[0]}, Config::parse("dense"), 1, false);
    double best = 1;
    for (int i = 0; i < 20; ++i) {
      rounds.start({std::vector<float>(3)});
      std::this_thread::sleep_for(std::chrono::milliseconds(25));
      best = std::min(best, rounds.take().seconds);
    }
    EXPECT_GE(best, 0.004);
    EXPECT_LT(best, 0.008);
  });
}

// This process's time on the processor, while it has nothing to do but to look now and then.
TEST(Pipeline, ALongMessageCostsNoTime) {
  run_local(1, [](Group& group) {
    Slow line(group, std::chrono::milliseconds(0), std::chrono::milliseconds(500));
    Pipeline rounds(line, {two[0]}, Config::parse("dense"), 1, false);
    rounds.start({std::vector<float>(3)});
    const std::clock_t begin = std::clock();
    std::this_thread::sleep_for(std::chrono::milliseconds(450));
    EXPECT_LT(std::clock() - begin, CLOCKS_PER_SEC / 10);
    rounds.take();
  });
}

// ---- overflows ----

// Not the first parameter of its bucket; and where a worker reads its own messages too.
TEST(DelayedVoid, NamesAnyParameter) {
  for (const char* correction : {"ledger", "ledger:book=b"}) {
    std::string texts[2];
    run_local(2, [&](Group& group) {
      Task task(group);
      DelayedAverage delayed(group, task.buckets, views(task.weights),
                             Config::parse("topk:density=0.1"), options_of(correction, 1));
      texts[group.rank()] = error_of([&] {
        for (std::uint64_t step = 0; step < 6; ++step) {
          task.step(step);
          if (step == 2 && group.rank() == 1) task.weights[0][4100] = 3e38f;
          delayed.finish_step();
        }
      });
    });
    EXPECT_TRUE(has(texts[1], "this worker's update of parameter 'conv.bias' is not finite"))
        << texts[1];
    EXPECT_TRUE(has(texts[0], "another worker's update")) << texts[0];
  }
}

// ---- anchors ----

TEST(Delayed, AnchorsAreComparedWhenTheyHaveArrived) {
  const std::string text = error_of([] {
    run_local(2, [](Group& group) {
      Lazy lazy(group);
      Values weights = of(group.rank() == 0 ? 1.0f : 2.0f);
      DelayedAverage delayed(lazy, two, views(weights), Config::parse("dense"),
                             options_of("ledger", 0));
      delayed.finish_step();
    });
  });
  EXPECT_TRUE(has(text, "rank 1 has another anchor")) << text;
}

// ---- moments ----

// They follow the plain ledger under every correction but none: own updates count at once, the mean
// when it arrives, all of it.
TEST(Delayed, MomentsFollowThePlainLedger) {
  for (const char* correction : {"ledger", "soft", "pull", "ledger:pace=0.5", "ledger:clip=0.1",
                                 "soft:share=0.75", "none"}) {
    run_local(2, [&](Group& group) {
      const bool none = correction == std::string("none");
      const float own = group.rank() == 0 ? 1 : 3;
      Values weights = of(0), moments = of(0);
      DelayedAverage delayed(group, two, views(weights), Config::parse("dense"),
                             options_of(correction, 1), views(moments));
      float expected = 0;
      for (int step = 0; step < 12; ++step) {
        for (auto& array : moments)
          for (float& value : array) value += own;
        for (auto& array : weights)
          for (float& value : array) value += group.rank() == 0 ? 1.0f : -1.0f;
        delayed.finish_step();
        expected = 2.0f * static_cast<float>(step) + (none ? 0 : own);
        EXPECT_EQ(moments, of(expected)) << correction << " " << step;
      }
      delayed.drain();
      EXPECT_EQ(moments, of(24)) << correction;
    });
  }
}

TEST(Delayed, MomentsAreSavedUnderTheirOwnNames) {
  run_local(2, [](Group& group) {
    Values weights = of(0), moments = of(1);
    DelayedAverage delayed(group, two, views(weights), Config::parse("dense"),
                           options_of("ledger", 2), views(moments));
    delayed.finish_step();
    State state;
    StateSaver saver(state);
    delayed.visit_state(saver);
    for (const char* name : {"a/weights", "b/weights", "a/moment/weights", "b/moment/weights"})
      EXPECT_TRUE(state.contains(name)) << name;
    for (const char* id : {"0", "1", "2", "3"})
      EXPECT_TRUE(state.contains(std::string("delay/") + id + "/rounds")) << id;
    EXPECT_EQ(state.at("delay/acknowledged").number, 0);
  });
}

// ---- what is refused ----

TEST(Delayed, SettingsAreCheckedBeforeAnythingElse) {
  run_local(1, [](Group& group) {
    Values weights = of(0), moments = of(0);
    DelayOptions options = options_of("ledger", 2);
    options.local_steps = 0;
    EXPECT_TRUE(has(error_of([&] {
                      DelayedAverage(group, two, views(weights), Config::parse("dense"), options);
                    }),
                    "local steps: expected at least 1"));
    const auto replay = [](std::uint64_t, std::size_t, std::span<const float>, std::span<float>) {};
    EXPECT_TRUE(has(error_of([&] {
                      PublishedAverage(group, two, views(weights), Config::parse("dense"),
                                       options_of("published", 2), views(moments), replay);
                    }),
                    "take ledger or pull with Adam"));
    EXPECT_TRUE(has(error_of([&] {
                      DelayedAverage(group, two, views(weights), Config::parse("signum"),
                                     options_of("ledger", 2));
                    }),
                    "signum"));
  });
}

}  // namespace thinwire::details
