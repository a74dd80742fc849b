// pipeline_test.cc: messages in the background: how many, in which order, what is counted, and
// ranks with a different set-up. Also the numbers that delayed averaging chooses by itself.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/delay/pipeline.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string_view>
#include <thread>

#include "tests/gradients.h"
#include "thinwire/delay/ledger.h"
#include "thinwire/thinwire.h"

namespace thinwire {
namespace {

using testing::error_of;
using testing::gradient;
using testing::same_bits;
using testing::Shape;

const std::vector<Bucket> two = {Bucket::single(0, "a", 40), Bucket::single(1, "b", 8)};

Message message_of(float value) {
  return {std::vector<float>(40, value), std::vector<float>(8, value)};
}

TEST(Pipeline, AnotherSetUpIsNamed) {
  const auto text = [](const char* scheme, std::size_t depth, std::size_t count) {
    std::string seen;
    run_local(2, [&](Group& group) {
      const bool odd = group.rank() == 1;
      const std::string found = error_of([&] {
        const std::vector<Bucket> buckets = {Bucket::single(0, "a", odd ? count : 40)};
        Pipeline rounds(group, buckets, Config::parse(odd ? scheme : "dense"), odd ? depth : 2,
                        false);
      });
      if (group.rank() == 0) seen = found;
    });
    return seen;
  };
  EXPECT_EQ(text("dense", 2, 40), "");
  EXPECT_NE(text("bf16", 2, 40).find("rank 1 was set up otherwise"), std::string::npos);
  EXPECT_NE(text("dense", 3, 40).find("rank 1 was set up otherwise"), std::string::npos);
  EXPECT_NE(text("dense", 2, 41).find("rank 1 was set up otherwise"), std::string::npos);
}

TEST(Pipeline, HoldsAsManyAsItsDepth) {
  run_local(2, [](Group& group) {
    Pipeline rounds(group, two, Config::parse("dense"), 2, false);
    EXPECT_FALSE(rounds.ready());
    EXPECT_NE(error_of([&] { rounds.take(); }).find("without a round"), std::string::npos);
    EXPECT_NE(error_of([&] { rounds.start({}, {}); }).find("2 buckets, got 0"), std::string::npos);
    const auto mine = static_cast<float>(group.rank());
    for (int i = 0; i < 4; ++i) {
      EXPECT_EQ(rounds.in_flight(), 0u);
      rounds.start(message_of(mine + static_cast<float>(10 * i)), {});
      rounds.start(message_of(mine + 100), {});
      EXPECT_EQ(rounds.in_flight(), 2u);
      EXPECT_NE(error_of([&] { rounds.start(message_of(0), {}); }).find("take() one first"),
                std::string::npos);
      EXPECT_EQ(rounds.take().mean[0], std::vector<float>(40, 0.5f + static_cast<float>(10 * i)));
      EXPECT_EQ(rounds.in_flight(), 1u);
      EXPECT_EQ(rounds.take().mean[1][0], 100.5f);
    }
    const Report report = rounds.report();
    EXPECT_EQ(report.steps, 8u);
    EXPECT_EQ(report.payload_bytes, 8u * 48 * 4);
    EXPECT_EQ(report.dense_bytes, 8u * 48 * 4);
    EXPECT_EQ(report.traffic.collectives, 16u);
    EXPECT_GT(report.traffic.sent, 0u);
    EXPECT_LT(report.traffic.sent, 100000u);
  });
}

TEST(Pipeline, ObserverSeesEveryStageOfEveryRound) {
  run_local(2, [](Group& group) {
    Pipeline rounds(group, two, Config::parse("topk:density=0.5"), 1, false);
    std::vector<Stage> seen;
    rounds.observe([&](const Stage& stage) { seen.push_back(stage); });
    for (int i = 0; i < 3; ++i) {
      rounds.start(message_of(1), {});
      rounds.take();
    }
    rounds.observe({});
    ASSERT_EQ(seen.size(), 18u);
    const std::string names[] = {"encode", "encode", "exchange", "decode", "exchange", "decode"};
    const std::uint16_t buckets[] = {0, 1, 0, 0, 1, 1};
    for (std::size_t i = 0; i < seen.size(); ++i) {
      EXPECT_EQ(seen[i].name, names[i % 6]) << i;
      EXPECT_EQ(seen[i].bucket, buckets[i % 6]) << i;
      EXPECT_EQ(seen[i].round, i / 6);
      EXPECT_LE(seen[i].begin, seen[i].end);
    }
  });
}

// Gives the pipeline's thread time to do what it should do, or should not.
void let_it_work() { std::this_thread::sleep_for(std::chrono::milliseconds(50)); }

// Waits up to the time limit, which only a bug reaches.
bool becomes_ready(const Pipeline& rounds) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (!rounds.ready() && std::chrono::steady_clock::now() < limit)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return rounds.ready();
}

TEST(Pipeline, TheNextRoundBecomesReadyByItself) {
  run_local(2, [](Group& group) {
    Pipeline rounds(group, two, Config::parse("dense"), 2, false);
    rounds.start(message_of(1));
    rounds.start(message_of(2));
    EXPECT_TRUE(becomes_ready(rounds));
    let_it_work();  // the second has arrived, but at most one is decoded ahead
    EXPECT_EQ(rounds.take().mean[0][0], 1);
    EXPECT_TRUE(becomes_ready(rounds));
    EXPECT_EQ(rounds.take().mean[0][0], 2);
    EXPECT_FALSE(rounds.ready());
  });
}

// Only await_arrivals() decodes two rounds ahead, and only while it runs.
TEST(Pipeline, OneRoundIsDecodedAhead) {
  run_local(2, [](Group& group) {
    std::atomic<int> decoded = 0;
    Pipeline rounds(group, two, Config::parse("dense"), 2, false);
    rounds.observe([&](const Stage& stage) {
      if (stage.bucket == 1 && std::string_view(stage.name) == "decode") ++decoded;
    });
    for (int time = 0; time < 2; ++time) {
      decoded = 0;
      rounds.start(message_of(1));
      rounds.start(message_of(2));
      EXPECT_TRUE(becomes_ready(rounds));
      let_it_work();
      EXPECT_EQ(decoded, 1) << time;
      rounds.await_arrivals();
      EXPECT_EQ(decoded, 2) << time;
      EXPECT_EQ(rounds.take().mean[0][0], 1);
      EXPECT_EQ(rounds.take().mean[0][0], 2);
    }
    rounds.observe({});
  });
}

// Anchors are compared with the first message, not only after `check_every` steps.
TEST(Delayed, WorkersThatStartApartAreNamedAtOnce) {
  const auto text = [](float apart) {
    return error_of([&] {
      run_local(2, [&](Group& group) {
        std::vector<float> weights(40, group.rank() == 1 ? apart : 1.0f);
        DelayOptions options;
        options.delay = 3;
        DelayedAverage delayed(group, {Bucket::single(0, "a", 40)}, {weights},
                               Config::parse("dense"), options);
        for (int step = 0; step < 20; ++step) delayed.finish_step();
      });
    });
  };
  EXPECT_EQ(text(1.0f), "");
  EXPECT_NE(text(1.5f).find("round 0, bucket 0: rank 1 has another anchor"), std::string::npos);
}

DelayOptions options_of(const char* correction, std::uint64_t delay, std::uint64_t steps) {
  DelayOptions options;
  options.parse_correction(correction);
  options.delay = delay;
  options.local_steps = steps;
  return options;
}

TEST(DelayOptions, NumbersThatAreChosen) {
  EXPECT_EQ(options_of("soft", 0, 1).rounds_in_flight(), 1u);
  EXPECT_EQ(options_of("soft", 6, 3).rounds_in_flight(), 2u);
  EXPECT_EQ(options_of("soft", 7, 3).rounds_in_flight(), 3u);
  EXPECT_EQ(options_of("soft", 2, 3).rounds_in_flight(), 1u);

  EXPECT_EQ(options_of("pull:rate=0.3", 9, 1).pull_rate(), 0.3);
  EXPECT_EQ(options_of("pull", 0, 1).pull_rate(), 1);
  EXPECT_NEAR(options_of("pull", 8, 2).pull_rate(), 0.1, 1e-12);
  EXPECT_NEAR(options_of("pull", 2, 8).pull_rate(), 0.4, 1e-12);

  EXPECT_EQ(options_of("soft:pace=0.25", 9, 1).effective_pace(), 0.25);
  EXPECT_EQ(options_of("soft", 0, 1).effective_pace(), 1);
  EXPECT_EQ(options_of("ledger", 9, 1).effective_pace(), 1);
  DelayOptions soft = options_of("soft", 98, 3);
  EXPECT_NEAR(soft.effective_pace(), 0.02, 1e-12);
  soft.momentum = 0.98;
  EXPECT_NEAR(soft.effective_pace(), 0.01, 1e-12);
  soft.momentum = 0.5;
  EXPECT_NEAR(soft.effective_pace(), 0.02, 1e-12);
  soft.delay = 1, soft.local_steps = 1, soft.momentum = -9;
  EXPECT_EQ(soft.effective_pace(), 1);

  EXPECT_EQ(options_of("ledger:share=0.5", 4, 1).effective_share(), 0.5);
  EXPECT_EQ(options_of("ledger:share=0.5", 0, 1).effective_share(), 1);
  EXPECT_EQ(options_of("ledger", 4, 1).effective_share(), 1);
  EXPECT_TRUE(options_of("soft", 1, 1).measures_share());
  for (const DelayOptions& fixed : {options_of("soft", 0, 1), options_of("soft:share=0.7", 4, 1),
                                    options_of("ledger", 4, 1), options_of("soft:book=b", 4, 1)})
    EXPECT_FALSE(fixed.measures_share());
}

TEST(DelayOptions, TakeTheirBoundsAndNoMore) {
  const auto delay = [](const char* text) {
    DelayOptions options;
    return error_of([&] { options.parse_delay(text); });
  };
  for (const char* good : {"0", "100000", "auto:1", "auto:100000"}) EXPECT_EQ(delay(good), "");
  for (const char* bad : {"", "100001", "auto:", "auto:0", "auto:100001", "-1", "1.5", "3x"})
    EXPECT_NE(delay(bad), "") << bad;
  const auto correction = [](const char* text) {
    DelayOptions options;
    return error_of([&] {
      options.parse_correction(text);
      options.check();
    });
  };
  for (const char* good : {"soft:share=1", "soft:share=0", "ledger:clip=1000000", "soft:pace=1",
                           "pull:rate=1", "ledger:pace=1,clip=2", "ledger:pace=0,clip=2",
                           "soft:book=b", "ledger:book=b", "pull:clip=1", "none", "published"})
    EXPECT_EQ(correction(good), "") << good;
  for (const char* bad :
       {"soft:share=1.1", "soft:share=-0.1", "ledger:clip=1000001", "soft:pace=1.1",
        "pull:rate=1.1", "ledger:pace=0.5,clip=2", "soft:clip=1", "none:share=0.5", "none:pace=0.5",
        "none:clip=1", "soft:rate=0.5", "pull:book=b", "soft:share=0.5,book=b", "harsh"})
    EXPECT_NE(correction(bad), "") << bad;
  DelayOptions options;
  options.local_steps = 0;
  EXPECT_NE(error_of([&] { options.check(); }).find("at least 1"), std::string::npos);
}

// With share 1 the optimizer's weights are the worker's. None of their bits may change when a round
// closes, or when a step does not close one.
TEST(Ledger, ClosingARoundLeavesTheWeightsAlone) {
  DelayOptions options = options_of("ledger", 3, 2);
  std::vector<float> weights = gradient(Shape::normal, 500, 1);
  Ledger ledger(options, Bucket::single(0, "w", 500), weights, 4);
  std::vector<float> message(500);
  for (std::uint64_t step = 0; step < 6; ++step) {
    const auto update = gradient(Shape::heavy, 500, 10 + step);
    for (std::size_t i = 0; i < update.size(); ++i) weights[i] += update[i];
    const std::vector<float> before = weights;
    if (step % 2 == 1) {
      ledger.close(message, true);
    } else {
      ledger.step();
    }
    ASSERT_TRUE(same_bits(weights, before)) << step;
  }
}

}  // namespace
}  // namespace thinwire
