// numbers_test.cc: what delayed averaging counts, saves and tells, number by number; and what it
// refuses.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "tests/delay/training.h"
#include "tests/exchange/lazy.h"
#include "thinwire/delay/ledger.h"
#include "thinwire/delay/pipeline.h"

namespace thinwire::numbers {

using namespace testing;

static const std::vector<Bucket> two = {Bucket::single(0, "a", 40), Bucket::single(1, "b", 8)};

static Values of(float value) {
  return {std::vector<float>(40, value), std::vector<float>(8, value)};
}

static bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

static DelayOptions options_of(const char* correction, std::uint64_t delay,
                               std::uint64_t steps = 1) {
  DelayOptions options;
  options.parse_correction(correction);
  options.delay = delay;
  options.local_steps = steps;
  return options;
}

template <typename Visited>
static State state_of(Visited& visited) {
  State state;
  StateSaver saver(state);
  visited.visit_state(saver);
  return state;
}

// ---- messages ----

TEST(Pipeline, ReportTellsTimesAndTraffic) {
  run_local(2, [](Group& group) {
    Pipeline rounds(group, two, Config::parse("topk:density=0.5"), 1, false);
    for (int i = 0; i < 3; ++i) {
      rounds.start(of(1));
      const double seconds = rounds.take().seconds;
      EXPECT_GT(seconds, 0);
      EXPECT_LT(seconds, 60);
    }
    const Report report = rounds.report();
    EXPECT_EQ(report.steps, 3u);
    EXPECT_EQ(report.dense_bytes, 3u * 48 * 4);
    EXPECT_GT(report.payload_bytes, 0u);
    EXPECT_LT(report.payload_bytes, 1000u);
    EXPECT_EQ(report.traffic.sent, report.traffic.received);  // of two equal ranks
    EXPECT_LT(report.traffic.received, 2000u);
    for (const double seconds :
         {report.encode_seconds, report.wait_seconds, report.decode_seconds}) {
      EXPECT_GT(seconds, 0);
      EXPECT_LT(seconds, 60);
    }
  });
}

// Two collectives of a message count as one message.
TEST(Pipeline, AMessageIsCountedOnce) {
  run_local(2, [](Group& group) {
    const std::vector<Bucket> matrix = {Bucket{0, {{"w", 0, 600, {20, 30}}}}};
    Pipeline rounds(group, matrix, Config::parse("powersgd:rank=1"), 1, false);
    rounds.start({std::vector<float>(600, 1.0f)});
    rounds.take();
    EXPECT_EQ(rounds.report().steps, 1u);
    EXPECT_EQ(rounds.report().dense_bytes, 2400u);
    EXPECT_EQ(rounds.report().traffic.collectives, 2u);
  });
  for (const std::size_t buckets : {1u, 2u, 3u}) {
    run_local(1, [&](Group& group) {
      std::vector<Bucket> some;
      for (std::uint16_t b = 0; b < buckets; ++b)
        some.push_back(Bucket::single(b, "w" + std::to_string(b), 4));
      Pipeline rounds(group, some, Config::parse("dense"), 1, false);
      rounds.start(Message(buckets, std::vector<float>(4)));
      rounds.take();
      EXPECT_EQ(rounds.report().steps, 1u) << buckets;
    });
  }
}

TEST(Pipeline, AWorkerAloneAgreesWithItself) {
  run_local(1, [](Group& group) {
    Pipeline rounds(group, two, Config::parse("dense"), 1, false);
    rounds.start(of(3));
    EXPECT_EQ(rounds.take().mean, of(3));
    EXPECT_EQ(rounds.report().traffic.collectives, 2u);
  });
}

// After the agreements, what rank `from` sent arrives with a flipped bit.
class Damaging final : public Forwarding {
 public:
  Damaging(Group& inner, std::size_t from) : Forwarding(inner), from_(from) {}
  Pending all_gather(ConstBytes mine, std::size_t slot_bytes, Bytes slots,
                     std::span<std::size_t> sizes, Stream stream) override {
    Forwarding::all_gather(mine, slot_bytes, slots, sizes, stream).wait();
    if (gathers_++ > 0) slots[from_ * slot_bytes + 40] ^= std::byte{4};
    return {};
  }

 private:
  std::size_t from_;
  int gathers_ = 0;
};

TEST(Pipeline, DamageNamesTheRoundTheBucketAndTheRank) {
  for (const std::size_t from : {0u, 1u}) {
    run_local(2, [&](Group& group) {
      Damaging line(group, from);
      Pipeline rounds(line, {Bucket::single(0, "w", 5000)}, Config::parse("topk:density=0.01"), 1,
                      false);
      rounds.start({gradient(Shape::normal, 5000, 1)});
      const std::string text = error_of([&] { rounds.take(); });
      EXPECT_TRUE(has(text, ", round 0, bucket 0, bytes from rank " + std::to_string(from) + ": "))
          << text;
      EXPECT_TRUE(has(text, "; the step was not taken, restart from the last")) << text;
      // The error is final.
      EXPECT_EQ(error_of([&] { rounds.start({std::vector<float>(5000)}); }), text);
      EXPECT_EQ(error_of([&] { rounds.take(); }), text);
      EXPECT_EQ(error_of([&] { rounds.hold(); }), text);
      EXPECT_EQ(error_of([&] { rounds.await_arrivals(); }), text);
      EXPECT_TRUE(rounds.ready());
    });
  }
}

TEST(Pipeline, WaitsForItsCollectives) {
  run_local(2, [](Group& group) {
    Lazy lazy(group);
    Pipeline rounds(lazy, two, Config::parse("dense"), 1, false);
    for (int i = 0; i < 3; ++i) {
      rounds.start(of(static_cast<float>(group.rank() + i)));
      EXPECT_EQ(rounds.take().mean, of(0.5f + static_cast<float>(i)));
    }
  });
}

// The third sum takes a while; all others are done at once.
class SlowThird final : public Forwarding {
 public:
  using Forwarding::Forwarding;
  Pending all_reduce(Bytes data, DType dtype, ReduceOp op, Stream stream) override {
    Forwarding::all_reduce(data, dtype, op, stream).wait();
    return ++sums_ == 3 ? Pending(std::make_unique<Slow>()) : Pending();
  }

 private:
  class Slow final : public Pending::Work {
   public:
    void wait() override { std::this_thread::sleep_until(end_); }
    bool done() override { return std::chrono::steady_clock::now() >= end_; }
    Cost cost() const override { return {}; }

   private:
    std::chrono::steady_clock::time_point end_ =
        std::chrono::steady_clock::now() + std::chrono::milliseconds(400);
  };
  int sums_ = 0;
};

// Though the second waits to be taken, while the third is still under way.
TEST(Pipeline, ARoundTakesUntilItArrives) {
  run_local(1, [](Group& group) {
    SlowThird line(group);
    Pipeline rounds(line, {two[0]}, Config::parse("dense"), 3, false);
    for (int i = 0; i < 3; ++i) rounds.start({std::vector<float>(40)});
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    EXPECT_LT(rounds.take().seconds, 0.4);
    EXPECT_LT(rounds.take().seconds, 0.4);
    EXPECT_GE(rounds.take().seconds, 0.4);
  });
}

// ---- when anchors are compared ----

// Collectives beyond those of the messages themselves.
static std::uint64_t comparisons(std::uint64_t every, std::uint64_t local_steps,
                                 std::uint64_t steps) {
  std::uint64_t result = 0;
  run_local(2, [&](Group& group) {
    Values weights = of(1);
    DelayOptions options = options_of("ledger", 0, local_steps);
    options.check_every = every;
    DelayedAverage delayed(group, two, views(weights), Config::parse("dense"), options);
    for (std::uint64_t step = 0; step < steps; ++step) delayed.finish_step();
    if (group.rank() == 0)
      result = delayed.report().traffic.collectives - two.size() * (steps / local_steps);
  });
  return result;
}

TEST(Delayed, AnchorsAreComparedAsOftenAsAsked) {
  EXPECT_EQ(comparisons(0, 1, 12), 0u);
  EXPECT_EQ(comparisons(1, 1, 12), 12u);
  EXPECT_EQ(comparisons(4, 1, 12), 3u);
  EXPECT_EQ(comparisons(5, 1, 12), 3u);  // with rounds 0, 5, 10
  EXPECT_EQ(comparisons(4, 2, 24), 6u);  // every other of twelve rounds
  EXPECT_EQ(comparisons(1, 3, 12), 4u);  // rounds are longer: with each of them
  EXPECT_EQ(comparisons(100, 1, 12), 1u);
}

// ---- moments ----

// The second moments are those of the mean, element by element; no bucket's are another's.
TEST(Delayed, MomentsAreTheMeanOfAllWorkers) {
  for (const char* correction :
       {"ledger", "soft", "ledger:share=0.5", "none", "ledger:clip=0.01"}) {
    run_local(2, [&](Group& group) {
      Values weights = of(1), moments = of(0);
      DelayedAverage delayed(group, two, views(weights), Config::parse("dense"),
                             options_of(correction, 2), views(moments));
      const auto own = static_cast<float>(1 + 2 * group.rank());
      for (int step = 0; step < 6; ++step) {
        for (std::size_t i = 0; i < 40; ++i) moments[0][i] += own / 16;
        for (std::size_t i = 0; i < 8; ++i) moments[1][i] += own / 4;
        delayed.finish_step();
      }
      delayed.drain();
      EXPECT_EQ(moments[0], std::vector<float>(40, 6 * 2.0f / 16)) << correction;
      EXPECT_EQ(moments[1], std::vector<float>(8, 6 * 2.0f / 4)) << correction;
    });
  }
}

// Whatever becomes of the weights' share, own moments count at once and in full.
TEST(Delayed, OwnMomentsAreNotHeldBack) {
  for (const char* correction : {"soft", "ledger:share=0.5", "pull"}) {
    run_local(2, [&](Group& group) {
      Values weights = of(1), moments = of(1);
      DelayedAverage delayed(group, two, views(weights), Config::parse("dense"),
                             options_of(correction, 3), views(moments));
      for (int step = 0; step < 2; ++step) {
        for (auto& array : moments)
          for (float& value : array) value += 1;
        delayed.finish_step();
      }
      EXPECT_EQ(moments, of(3)) << correction;
    });
  }
}

// A correction may take more than there is: moments end at 0, and those above it as they are.
TEST(Delayed, MomentsStopAtZero) {
  run_local(2, [](Group& group) {
    const bool busy = group.rank() == 0;
    Values weights = of(1), moments = of(0.25f);
    DelayedAverage delayed(group, two, views(weights), Config::parse("dense"),
                           options_of("ledger", 2), views(moments));
    for (int step = 0; step < 3; ++step) {
      for (auto& array : moments)
        for (float& value : array) value = step == 0 && busy ? 8.25f : 0.25f;
      delayed.finish_step();
    }
    // Of the 8 that worker 0 added first, the mean has 4, when worker 0 has none of them any more.
    EXPECT_EQ(moments, of(busy ? 0.0f : 4.25f));
  });
}

TEST(Delayed, ArraysThatAreMissingAreCounted) {
  run_local(1, [](Group& group) {
    Values weights = of(1), moments = of(1);
    const auto text = [&](std::size_t of_weights, std::size_t of_moments) {
      Arrays some = views(weights), others = views(moments);
      some.resize(of_weights), others.resize(of_moments);
      return error_of([&] {
        DelayedAverage(group, two, some, Config::parse("dense"), options_of("ledger", 2), others);
      });
    };
    EXPECT_EQ(text(2, 0), "");
    EXPECT_EQ(text(2, 2), "");
    EXPECT_TRUE(has(text(1, 0), "expected 2 arrays, got 1 of weights and 0 of moments"));
    EXPECT_TRUE(has(text(2, 1), "expected 2 arrays, got 2 of weights and 1 of moments"));
  });
}

// ---- the published correction ----

// Every step is replayed once per bucket, in order, with its share of the mean.
TEST(Delayed, EveryStepIsReplayedOnce) {
  for (const std::uint64_t local_steps : {1u, 3u}) {
    run_local(2, [&](Group& group) {
      Values weights = of(1), gradients = of(0);
      std::vector<std::uint64_t> steps[2];
      std::vector<float> means;
      PublishedAverage delayed(
          group, two, views(weights), Config::parse("dense"),
          options_of("published", 4, local_steps), {},
          [&](std::uint64_t step, std::size_t b, std::span<const float> mean, std::span<float>) {
            steps[b].push_back(step);
            if (b == 0) means.push_back(mean[0]);
          });
      for (int step = 0; step < 9; ++step) {
        gradients = of(static_cast<float>(1 + 2 * group.rank()));
        delayed.correct(views(gradients));
        delayed.finish_step();
      }
      delayed.drain();
      const std::vector<std::uint64_t> all = {0, 1, 2, 3, 4, 5, 6, 7, 8};
      EXPECT_EQ(steps[0], all) << local_steps;
      EXPECT_EQ(steps[1], all) << local_steps;
      EXPECT_EQ(means, std::vector<float>(9, 2.0f)) << local_steps;
    });
  }
}

TEST(Delayed, OnlyThePublishedCorrectionTakesGradients) {
  run_local(1, [](Group& group) {
    Values weights = of(1), gradients = of(1);
    const auto replay = [](std::uint64_t, std::size_t, std::span<const float>, std::span<float>) {};
    PublishedAverage delayed(group, two, views(weights), Config::parse("dense"),
                             options_of("ledger", 1), {}, replay);
    EXPECT_TRUE(has(error_of([&] { delayed.correct(views(gradients)); }), "published correction"));
    Published books(two[0], weights[0]);
    EXPECT_TRUE(has(error_of([&] { books.acknowledge(weights[0], gradients[0]); }), "no round"));
    EXPECT_TRUE(
        has(error_of([&] { Published(two[0], weights[1]); }), "expected 40 weights, got 8"));
  });
}

// ---- a measured delay ----

// A reserve of one step beyond the slowest round. The state says that it is settled.
TEST(Delayed, AMeasuredDelayHasAReserve) {
  run_local(2, [](Group& group) {
    const auto slow = emulate_link(group, Link::parse("inf,40ms"));
    Values weights = of(1);
    DelayOptions options;
    options.parse_delay("auto:24");
    DelayedAverage delayed(*slow, two, views(weights), Config::parse("dense"), options);
    for (std::uint64_t step = 1; step <= 36; ++step) {
      std::this_thread::sleep_for(std::chrono::milliseconds(25));
      delayed.finish_step();
      EXPECT_EQ(delayed.steps(), step);
      // Eight rounds are timed; the last of them is due with step 32.
      if (step < 32) {
        EXPECT_EQ(delayed.delay(), 24u);
      }
    }
    EXPECT_GE(delayed.delay(), 3u);  // two steps, and one more
    EXPECT_LT(delayed.delay(), 24u);
    EXPECT_EQ(state_of(delayed).at("delay/acknowledged").number, 8);
    delayed.drain();
  });
}

// ---- the books ----

// Longer than a piece of work by a piece and a bit.
TEST(Ledger, LongArraysAreCountedOnce) {
  constexpr std::size_t count = (1u << 17) + 5;
  for (const char* correction : {"ledger", "soft"}) {
    DelayOptions options = options_of(correction, 1);
    options.local_steps = 5;
    std::vector<float> weights(count, 1.0f), message(count), mean(count, 0.5f);
    Ledger ledger(options, Bucket::single(0, "w", count), weights, 2);
    for (float& value : weights) value += 0.25f;
    ledger.close(message);
    EXPECT_EQ(message, std::vector<float>(count, 0.25f));
    ledger.acknowledge(mean, {});
    ledger.settle(1);
    EXPECT_EQ(weights, std::vector<float>(count, 1.5f));
    EXPECT_TRUE(std::ranges::equal(ledger.anchor(), weights));
    if (correction == std::string("ledger")) continue;
    const State state = state_of(ledger);
    EXPECT_EQ(state.at("delay/0/with_mean").number, 0.125 * count);
    EXPECT_EQ(state.at("delay/0/with_self").number, 0.0625 * count);
  }
}

// What is remembered of earlier rounds: 0.98 per step, and at least half per round.
TEST(Ledger, ForgetsByTheStep) {
  const auto with_self = [](std::uint64_t local_steps) {
    std::vector<float> weights(4), message(4), mean(4, 0.5f);
    Ledger ledger(options_of("soft", 1, local_steps), Bucket::single(0, "w", 4), weights, 1);
    for (int round = 0; round < 3; ++round) {
      for (float& value : weights) value += 1;
      ledger.close(message);
      ledger.acknowledge(mean, {});
      ledger.settle(1);
    }
    const State state = state_of(ledger);
    EXPECT_NEAR(state.at("delay/0/with_mean").number, state.at("delay/0/with_self").number / 2,
                1e-12);
    return state.at("delay/0/with_self").number / 4;
  };
  EXPECT_NEAR(with_self(1), 1 + 0.98 + 0.98 * 0.98, 1e-12);
  EXPECT_NEAR(with_self(5), 1 + 0.9 + 0.81, 1e-12);
  EXPECT_NEAR(with_self(40), 1 + 0.5 + 0.25, 1e-12);
}

TEST(Ledger, RefusalsTellTheNumbers) {
  std::vector<float> weights(3), message(3), shorter(2);
  Ledger ledger(options_of("ledger:book=b", 2), Bucket::single(0, "w", 3), weights, 2);
  EXPECT_TRUE(has(error_of([&] { ledger.close(shorter); }), "room for 3 values, got 2"));
  EXPECT_TRUE(
      has(error_of([&] { ledger.acknowledge(message, message); }), "no round is in flight"));
  ledger.close(message);
  EXPECT_TRUE(has(error_of([&] { ledger.acknowledge(shorter, message); }), "3 values, got 2"));
  EXPECT_TRUE(has(error_of([&] { ledger.acknowledge(message, shorter); }), "expected 3 values"));
  EXPECT_TRUE(has(error_of([&] { ledger.come_home(); }), "1 rounds are still in flight"));
  EXPECT_EQ(error_of([&] { ledger.acknowledge(message, message); }), "");
  EXPECT_TRUE(
      has(error_of([&] { Ledger(options_of("ledger", 2), Bucket::single(0, "w", 4), weights, 2); }),
          "expected 4 weights, got 3"));
}

}  // namespace thinwire::numbers
