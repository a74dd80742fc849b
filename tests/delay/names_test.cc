// names_test.cc: which numbers and arrays a delayed average saves under each correction, and that
// rounds arrive one after the other without anybody waiting.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string_view>
#include <thread>

#include "tests/gradients.h"
#include "thinwire/comm/local.h"
#include "thinwire/delay/ledger.h"
#include "thinwire/delay/pipeline.h"
#include "thinwire/delay/published.h"

namespace thinwire::names {

using namespace testing;

// The names that a ledger with two rounds in flight saves, without those that all have.
static std::string saved(const char* correction, std::uint64_t delay = 3) {
  DelayOptions options;
  options.parse_correction(correction);
  options.delay = delay;
  std::vector<float> weights(5), message(5);
  Ledger ledger(options, Bucket::single(2, "w", 5), weights, 2);
  ledger.close(message);
  ledger.close(message);
  State state;
  StateSaver saver(state);
  ledger.visit_state(saver);
  for (const char* always :
       {"w/weights", "w/own", "w/start", "w/due", "w/kept0", "w/kept1", "delay/2/rounds"})
    EXPECT_EQ(state.erase(always), 1u) << correction << " " << always;
  std::string names;
  for (const auto& [name, entry] : state) names += name + " ";
  return names;
}

TEST(Ledger, SavesWhatItsCorrectionNeeds) {
  const std::string measured =
      "delay/2/share delay/2/share0 delay/2/share1 delay/2/with_mean delay/2/with_self w/open ";
  EXPECT_EQ(saved("soft"), measured);
  EXPECT_EQ(saved("soft", 0), "");
  EXPECT_EQ(saved("soft:share=0.5"), "w/open ");
  EXPECT_EQ(saved("soft:share=1"), "");
  EXPECT_EQ(saved("soft:book=b"), "w/held ");
  EXPECT_EQ(saved("ledger"), "");
  EXPECT_EQ(saved("ledger:share=0.25"), "w/open ");
  EXPECT_EQ(saved("ledger:book=b"), "w/held ");
  EXPECT_EQ(saved("pull"), "");
  EXPECT_EQ(saved("none"), "");
}

TEST(DelayOptions, NumbersThatAreNoneAreRefused) {
  for (const char* text : {"", "auto:", "auto", "x", "1x", "auto:1x", "-1", "auto:0", "100001",
                           "99999999999999999999999", "auto:99999999999999999999999"}) {
    DelayOptions options;
    const std::string error = error_of([&] { options.parse_delay(text); });
    EXPECT_NE(error.find("expected a number of steps up to 100000"), std::string::npos) << text;
  }
  for (const char* text : {"0", "1", "100000", "auto:1", "auto:100000"}) {
    DelayOptions options;
    options.parse_delay(text);
    EXPECT_EQ(options.delay_str(), text);
  }
}

// Lengths are measured only to clip by them.
TEST(Ledger, TellsLengthsWhereItClips) {
  for (const char* correction : {"ledger", "ledger:clip=2"}) {
    DelayOptions options;
    options.parse_correction(correction);
    options.delay = 1;
    std::vector<float> weights(2), message(2);
    Ledger ledger(options, Bucket::single(0, "w", 2), weights, 2);
    ledger.close(message);
    const Ledger::Due due = ledger.acknowledge(std::vector<float>{3, 4}, {});
    EXPECT_EQ(due.mean, options.clip > 0 ? 25 : 0);
    EXPECT_EQ(due.correction, options.clip > 0 ? 25 : 0);
  }
}

// One element more than a thread's piece: it is sent, acknowledged and corrected like the others.
TEST(Ledger, TheLastElementCounts) {
  const std::size_t count = 65537;
  DelayOptions options;
  options.parse_correction("soft");
  options.delay = 2;
  std::vector<float> weights(count), message(count);
  Ledger ledger(options, Bucket::single(0, "w", count), weights, 2);
  weights.back() = 1;
  ledger.step();
  ledger.close(message);
  EXPECT_EQ(message.back(), 1.0f);
  ledger.acknowledge(std::vector<float>(count, 0.5f), {});
  EXPECT_EQ(ledger.anchor()[count - 1], 0.5f);
  ledger.settle(1);
  EXPECT_EQ(weights.back(), 0.5f);
  EXPECT_EQ(weights.front(), 0.5f);
  State state;
  StateSaver saver(state);
  ledger.visit_state(saver);
  EXPECT_EQ(state.at("delay/0/with_self").number, 1);
  EXPECT_EQ(state.at("delay/0/with_mean").number, 0.5);
  ledger.come_home();
  EXPECT_EQ(weights.back(), 0.5f);
}

// Who is alone, or stands still, has nothing to measure: the whole update is applied at once.
TEST(Ledger, AShareThatCannotBeMeasuredIsOne) {
  for (const std::size_t workers : {1u, 2u}) {
    DelayOptions options;
    options.parse_correction("soft");
    options.delay = 1;
    std::vector<float> weights(3), message(3);
    Ledger ledger(options, Bucket::single(0, "w", 3), weights, workers);
    for (int round = 0; round < 3; ++round) {
      if (workers == 1) weights[1] += 1;
      ledger.close(message);
      ledger.acknowledge(message, {});
      State state;
      StateSaver saver(state);
      ledger.visit_state(saver);
      EXPECT_EQ(state.at("delay/0/share").number, 1) << workers;
    }
  }
}

// An average takes as much memory as a message, so only the next one is decoded ahead of time.
TEST(Pipeline, DecodesOneRoundAhead) {
  run_local(1, [](Group& group) {
    Pipeline rounds(group, {Bucket::single(0, "w", 2)}, Config::parse("dense"), 3, false);
    std::atomic<int> decoded = 0;
    rounds.observe(
        [&](const Stage& stage) { decoded += std::string_view(stage.name) == "decode" ? 1 : 0; });
    for (int again = 0; again < 2; ++again) {
      decoded = 0;
      for (int i = 0; i < 3; ++i) rounds.start({std::vector<float>(2)});
      while (!rounds.ready()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      EXPECT_EQ(decoded, 1);
      rounds.await_arrivals();
      EXPECT_EQ(decoded, 3);
      for (int i = 0; i < 3; ++i) rounds.take();
    }
  });
}

// Nobody waits: ready() only looks. Each take() makes room for the next.
TEST(Pipeline, ArrivedRoundsFollowEachOther) {
  run_local(1, [](Group& group) {
    Pipeline rounds(group, {Bucket::single(0, "w", 2)}, Config::parse("dense"), 4, false);
    for (int i = 0; i < 4; ++i) rounds.start({std::vector<float>(2, static_cast<float>(i))});
    for (int i = 0; i < 4; ++i) {
      const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
      while (!rounds.ready() && std::chrono::steady_clock::now() < limit)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      ASSERT_TRUE(rounds.ready()) << i;
      // The thread has gone to sleep over the rounds that have arrived behind it.
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      EXPECT_EQ(rounds.take().mean[0][1], static_cast<float>(i));
      EXPECT_EQ(rounds.in_flight(), static_cast<std::size_t>(3 - i));
    }
    EXPECT_FALSE(rounds.ready());
  });
}

}  // namespace thinwire::names
