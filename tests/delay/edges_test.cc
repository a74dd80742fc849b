// edges_test.cc: delayed averaging when a run is interrupted: drained and continued, saved while
// the delay is still being measured, loaded twice, or configured differently on some rank.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tests/delay/training.h"

namespace thinwire::testing {
namespace {

State state_of(DelayedAverage& delayed) {
  State state;
  StateSaver saver(state);
  delayed.visit_state(saver);
  return state;
}

// Book b: at a drain, unsent updates leave the weights, and later steps bring them back.
TEST(DelayEdges, TrainingGoesOnAfterADrainAsIfThereWereNone) {
  for (const char* correction : {"ledger:book=b", "soft:book=b,pace=0.5"})
    run_local(3, [&](Group& group) {
      const Setting setting{"topk:density=0.05", correction, 4, 2};
      SCOPED_TRACE(setting.str());
      Training training(group, setting);
      training.run(0, 30);
      training.delayed().drain();
      check_equal(group, views(training.task().weights));
      training.delayed().drain();
      check_equal(group, views(training.task().weights));
      training.run(30, 80);
      {
        const auto lock = training.delayed().hold();
        law_mean_model(group, setting, training.task());
      }
      const std::vector<double> lead = training.delayed().lead(0);
      const auto anchor = training.delayed().anchor(0);
      for (std::size_t i = 0; i < lead.size(); ++i)
        ASSERT_NEAR(training.task().weights[0][i], anchor[i] + lead[i], 2e-5);
      training.delayed().drain();
      check_equal(group, views(training.task().weights));
    });
}

// Two workers move in opposite directions, and a tenth as far together. With clip=1 a correction
// takes back no more than they have in common, over all buckets together.
TEST(DelayEdges, ClipCutsTheCorrectionOfTheWholeModel) {
  run_local(2, [](Group& group) {
    const std::vector<Bucket> buckets = {Bucket::single(0, "w", 30), Bucket::single(1, "bias", 6)};
    std::vector<std::vector<float>> weights = {std::vector<float>(30), std::vector<float>(6)};
    DelayOptions options;
    options.delay = 1;
    options.parse_correction("ledger:clip=1");
    DelayedAverage delayed(group, buckets, views(weights), Config::parse("dense"), options);
    const float own = group.rank() == 0 ? 1.1f : -0.9f;
    for (int step = 0; step < 2; ++step) {
      for (std::vector<float>& bucket : weights)
        for (float& value : bucket) value += own;
      delayed.finish_step();
    }
    const float correction = group.rank() == 0 ? -0.1f : 0.1f;
    for (const std::vector<float>& bucket : weights)
      for (const float value : bucket) EXPECT_NEAR(value, 2 * own + correction, 1e-5);
    delayed.drain();
  });
}

std::uint64_t measured_delay(Group& group, std::uint64_t steps, State* from, State* to) {
  const auto slow = emulate_link(group, Link::parse("inf,40ms"));
  Task task(group);
  DelayOptions options;
  options.parse_delay("auto:40");
  DelayedAverage delayed(*slow, task.buckets, views(task.weights), Config::parse("dense"), options);
  if (from != nullptr) {
    StateLoader loader(*from);
    delayed.visit_state(loader);
  }
  const std::uint64_t first = delayed.steps();
  for (std::uint64_t step = first; step < first + steps; ++step) {
    task.step(step);
    std::this_thread::sleep_for(std::chrono::milliseconds(4));
    delayed.finish_step();
  }
  if (to != nullptr) *to = state_of(delayed);
  const std::uint64_t found = delayed.delay();
  delayed.drain();
  return found;
}

TEST(DelayEdges, AMeasurementThatWasInterruptedStartsAgain) {
  run_local(2, [&](Group& group) {
    for (const std::uint64_t stop : {5U, 42U}) {  // before and after the first round is taken in
      State state, later;
      EXPECT_EQ(measured_delay(group, stop, nullptr, &state), 40u);
      const std::uint64_t found = measured_delay(group, 90, &state, &later);
      EXPECT_GE(found, 4u) << "after " << stop << " steps";
      EXPECT_LT(found, 40u) << "after " << stop << " steps";
      EXPECT_EQ(measured_delay(group, 60, &later, nullptr), found) << "it was settled";
    }
  });
}

TEST(DelayEdges, ASecondLoadReplacesTheFirst) {
  for (const Setting& setting : settings())
    run_local(2, [&](Group& group) {
      SCOPED_TRACE(setting.str());
      Training straight(group, setting);
      State early, late, straight_state, resumed_state;
      StateSaver early_saver(early), late_saver(late), straight_saver(straight_state),
          resumed_saver(resumed_state);
      straight.run(0, 1);
      straight.visit_state(early_saver);
      straight.run(1, 23);
      straight.visit_state(late_saver);
      Training resumed(group, setting);
      StateLoader late_loader(late), early_loader(early);
      resumed.visit_state(late_loader);
      resumed.visit_state(early_loader);
      resumed.run(1, 30);
      resumed.visit_state(resumed_saver);
      straight.run(23, 30);
      straight.visit_state(straight_saver);
      ASSERT_EQ(serialize(straight_state), serialize(resumed_state));
    });
}

// Each of these changes the anchor, or when it is compared. The number of messages in flight
// is the same.
TEST(DelayEdges, RanksThatAreSetDifferentlyAreNamed) {
  const auto error = [](auto change) {
    return error_of([&] {
      run_local(2, [&](Group& group) {
        Task task(group);
        DelayOptions options;
        options.delay = 2;
        if (group.rank() == 1) change(options);
        DelayedAverage(group, task.buckets, views(task.weights), Config::parse("dense"), options);
      });
    });
  };
  const auto names = [](const std::string& text, const char* part) {
    EXPECT_NE(text.find("rank 1"), std::string::npos) << text;
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  names(error([](DelayOptions& options) { options.delay = 4, options.local_steps = 2; }),
        "2 local steps");
  names(error([](DelayOptions& options) { options.parse_correction("none"); }), "none");
  names(error([](DelayOptions& options) { options.check_every = 7; }), "every 7 steps");
  names(error([](DelayOptions& options) { options.parse_delay("auto:2"); }), "auto:2");
}

}  // namespace
}  // namespace thinwire::testing
