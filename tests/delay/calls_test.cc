// calls_test.cc: what each call of a delayed average does, and at which step.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <atomic>

#include "tests/delay/training.h"

namespace thinwire::calls {

using namespace testing;

static const std::vector<Bucket> two = {Bucket::single(0, "a", 3), Bucket::single(1, "b", 2)};

// Two arrays, as the buckets are.
static Values of(float value) {
  return {std::vector<float>(3, value), std::vector<float>(2, value)};
}

static DelayOptions options_of(const char* correction, std::uint64_t delay,
                               std::uint64_t steps = 1) {
  DelayOptions options;
  options.parse_correction(correction);
  options.delay = delay;
  options.local_steps = steps;
  return options;
}

static void add(Values& values, float update) {
  for (auto& array : values)
    for (float& value : array) value += update;
}

// The first element of bucket 1 after each of `steps` steps, of which the first adds 1 on worker 0
// and 3 on worker 1.
static std::vector<float> course(Group& group, const DelayOptions& options, int steps,
                                 bool of_anchor) {
  Values weights = of(0);
  DelayedAverage delayed(group, two, views(weights), Config::parse("dense"), options);
  std::vector<float> seen;
  for (int step = 0; step < steps; ++step) {
    if (step == 0) add(weights, group.rank() == 0 ? 1.0f : 3.0f);
    delayed.finish_step();
    seen.push_back(of_anchor ? delayed.anchor(1)[0] : weights[1][0]);
  }
  delayed.drain();
  EXPECT_EQ(weights, of(2));
  return seen;
}

TEST(Delayed, AMeanIsAppliedAfterAsManySteps) {
  using Course = std::vector<float>;
  run_local(2, [](Group& group) {
    const float own = group.rank() == 0 ? 1 : 3;
    EXPECT_EQ(course(group, options_of("ledger", 0), 2, true), (Course{2, 2}));
    EXPECT_EQ(course(group, options_of("ledger", 1), 3, true), (Course{0, 2, 2}));
    EXPECT_EQ(course(group, options_of("ledger", 3), 5, true), (Course{0, 0, 0, 2, 2}));
    EXPECT_EQ(course(group, options_of("ledger", 3), 5, false), (Course{own, own, own, 2, 2}));
    EXPECT_EQ(course(group, options_of("none", 2), 4, false), (Course{0, 0, 2, 2}));
    EXPECT_EQ(course(group, options_of("ledger", 0, 3), 4, true), (Course{0, 0, 2, 2}));
    EXPECT_EQ(course(group, options_of("ledger", 2, 3), 6, true), (Course{0, 0, 0, 0, 2, 2}));
  });
}

// By halves: of a correction that is due, then of what is left of it.
TEST(Delayed, APaceSpreadsTheCorrection) {
  run_local(2, [](Group& group) {
    const float own = group.rank() == 0 ? 1 : 3, way = 2 - own;
    EXPECT_EQ(course(group, options_of("ledger:pace=0.5", 1), 4, false),
              (std::vector<float>{own, own + way / 2, own + way * 3 / 4, own + way * 7 / 8}));
    EXPECT_EQ(course(group, options_of("ledger:share=0.5", 1), 3, false),
              (std::vector<float>{own / 2, 2, 2}));
  });
}

TEST(Delayed, CountsItsMessages) {
  run_local(2, [](Group& group) {
    Values weights = of(0);
    DelayedAverage delayed(group, two, views(weights), Config::parse("dense"),
                           options_of("ledger", 5, 2));
    std::vector<std::uint64_t> in_flight;
    for (std::uint64_t step = 1; step <= 8; ++step) {
      delayed.finish_step();
      EXPECT_EQ(delayed.steps(), step);
      in_flight.push_back(delayed.in_flight());
    }
    EXPECT_EQ(in_flight, (std::vector<std::uint64_t>{0, 1, 1, 2, 2, 3, 2, 3}));
    delayed.drain();
    EXPECT_EQ(delayed.in_flight(), 0u);
    EXPECT_EQ(delayed.delay(), 5u);
    EXPECT_EQ(delayed.report().steps, 5u);  // and one that sent what was open
  });
}

TEST(Delayed, AnchorAndWeightsChangePlaces) {
  run_local(2, [](Group& group) {
    Values weights = of(0);
    DelayedAverage delayed(group, two, views(weights), Config::parse("dense"),
                           options_of("ledger", 4));
    add(weights, 5);
    delayed.finish_step();
    delayed.swap_anchor();
    EXPECT_EQ(weights, of(0));
    EXPECT_EQ(delayed.anchor(0)[2], 5);
    delayed.swap_anchor();
    EXPECT_EQ(weights, of(5));
    EXPECT_EQ(delayed.anchor(1)[1], 0);
  });
}

TEST(Delayed, ArrivalsCanBeAwaited) {
  run_local(2, [](Group& group) {
    std::atomic<int> decoded = 0;
    Values weights = of(0);
    DelayedAverage delayed(group, two, views(weights), Config::parse("dense"),
                           options_of("ledger", 4));
    delayed.observe([&](const Stage& stage) {
      if (std::string_view(stage.name) == "decode" && stage.bucket == 1) ++decoded;
    });
    for (int step = 0; step < 3; ++step) delayed.finish_step();
    delayed.await_arrivals();
    EXPECT_EQ(decoded, 3);
    EXPECT_EQ(delayed.in_flight(), 3u);
    delayed.observe({});
  });
}

// What a worker missed goes with the next round.
TEST(Delayed, AMissedRoundIsMadeUpFor) {
  run_local(2, [](Group& group) {
    Values weights = of(0);
    DelayedAverage delayed(group, two, views(weights), Config::parse("dense"),
                           options_of("ledger", 0));
    add(weights, 4);
    delayed.finish_step(group.rank() == 0);
    EXPECT_EQ(delayed.anchor(0)[0], 2);
    EXPECT_EQ(weights, of(group.rank() == 0 ? 2.0f : 6.0f));
    delayed.finish_step();
    EXPECT_EQ(delayed.anchor(0)[0], 4);
    EXPECT_EQ(weights, of(4));
  });
}

}  // namespace thinwire::calls
