// stream_delayed_test.cc: delayed averaging as on a GPU, on the CPU: bits, states, errors, waits.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "tests/delay/stream_laws.h"
#include "tests/exchange/forwarding.h"
#include "thinwire/thinwire.h"

namespace thinwire {
namespace {

using namespace testing;

TEST(StreamDelayed, HasTheBitsOfADelayedAverage) {
  for (const testing::Setting& setting : stream_settings())
    run_local(2, [&](Group& group) { law_same_as_delayed({group}, setting, false); });
  for (const testing::Setting& setting :
       {testing::Setting{"dense", "soft", 5, 1},
        testing::Setting{"dgc:momentum=0,density=0.05", "soft", 6, 1}})
    run_local(1, [&](Group& group) {
      const auto data = make_solo_stream_group({});
      law_same_as_delayed({group, data.get()}, setting, false);
    });
}

TEST(StreamDelayed, AveragesMoments) {
  for (const testing::Setting& setting :
       {testing::Setting{"dense", "soft", 5, 1}, testing::Setting{"bf16", "ledger", 4, 2},
        testing::Setting{"dense", "none", 3, 1},
        testing::Setting{"dgc:momentum=0,density=0.1", "soft:book=b", 4, 1},
        testing::Setting{"dense", "pull", 0, 3}})
    run_local(2, [&](Group& group) { law_same_as_delayed({group}, setting, true); });
}

TEST(StreamDelayed, TakesUpTheStateOfADelayedAverage) {
  const std::string sparse = "dgc:momentum=0,density=0.05";
  for (const testing::Setting& setting :
       {testing::Setting{"dense", "soft", 8, 1}, testing::Setting{"dense", "soft", 7, 3},
        testing::Setting{sparse, "soft:book=b", 6, 2}, testing::Setting{"powersgd", "ledger", 4, 4},
        testing::Setting{"dense", "pull", 6, 1},
        testing::Setting{"bf16", "ledger:share=0.5,clip=0.5", 6, 2}})
    run_local(2, [&](Group& group) {
      law_delayed_state_moves({group}, setting, setting.correction == "soft");
    });
}

// More workers than two: gathers have one order of sums.
TEST(StreamDelayed, GathersOfThreeWorkers) {
  run_local(3, [](Group& group) {
    law_same_as_delayed({group}, {"dgc:momentum=0,density=0.05", "soft", 6, 1}, false);
  });
}

TEST(StreamDelayed, ShowsTheAnchorAndHidesItAgain) {
  run_local(2, [](Group& group) {
    StreamTraining training({group}, {"dense", "soft", 4, 1}, false);
    training.run(0, 9);
    const Values own = training.task().weights;
    training.delayed().show_anchor(training.stream());
    training.download();
    for (std::size_t b = 0; b < own.size(); ++b)
      EXPECT_TRUE(same_bits(training.task().weights[b], training.anchor(b)));
    training.delayed().hide_anchor(training.stream());
    training.download();
    expect_same(training.task().weights, own, "hidden");
  });
}

TEST(StreamDelayed, NeverWaitsForYoungMessages) {
  run_local(2, [](Group& group) {
    const std::uint64_t delay = 8;
    StreamTraining training({group}, {"dense", "soft", delay, 1}, false);
    training.run(0, 10);
    {
      const auto lock = training.delayed().hold();
      group.barrier().wait();
    }
    const auto begin = std::chrono::steady_clock::now();
    const auto pause = std::chrono::milliseconds(1000);
    if (group.rank() == 1) std::this_thread::sleep_for(pause);
    training.run(10, 10 + delay);
    const auto spent = std::chrono::steady_clock::now() - begin;
    if (group.rank() == 0) {
      EXPECT_LT(spent, pause);
    }
    training.run(10 + delay, 20 + delay);
    training.drain();
    check_equal(group, views(training.task().weights));
  });
}

// Counts the sums that it has started.
class Counting final : public Forwarding {
 public:
  explicit Counting(Group& inner) : Forwarding(inner) {}
  Pending all_reduce(Bytes data, DType dtype, ReduceOp op, Stream stream) override {
    ++started;
    return Forwarding::all_reduce(data, dtype, op, stream);
  }
  std::atomic<int> started = 0;
};

// A message does not wait until earlier ones have arrived: all start while the other worker is
// away.
TEST(StreamDelayed, MessagesOfManyStepsAreUnderWayAtOnce) {
  std::atomic<bool> seen = false;
  run_local(2, [&](Group& group) {
    constexpr int delay = 12;
    Counting counting(group);
    StreamTraining training({counting}, {"dense", "soft", delay, 1}, false);
    training.run(0, 1);
    training.delayed().await_arrivals();
    const int before = counting.started, arrays = 2;  // one of the three buckets is empty
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    const auto wait_for = [&](const auto& done) {
      while (!done() && std::chrono::steady_clock::now() < limit)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    };
    if (group.rank() == 1) wait_for([&] { return seen.load(); });
    training.run(1, delay);
    const int expected = before + arrays * (delay - 1);
    wait_for([&] { return counting.started == expected; });
    EXPECT_EQ(counting.started, expected);
    seen = true;
    training.drain();
  });
}

TEST(StreamDelayed, AnUpdateThatIsNotFiniteIsNamed) {
  for (const char* scheme : {"dense", "dgc:momentum=0,density=0.05", "bf16"})
    run_local(2, [&](Group& group) { law_diverged({group}, scheme); });
}

TEST(StreamDelayed, WorkersThatStartApartAreNamed) {
  const std::string text = error_of([] {
    run_local(2, [](Group& group) {
      std::vector<float> weights(40, group.rank() == 1 ? 1.5f : 1.0f);
      LedgerPieces pieces;
      add_pieces(pieces, weights.data(), 0, weights.size());
      StreamDelayedAverage delayed({group}, {Bucket::single(0, "a", 40)}, {pieces},
                                   Config::parse("dense"), {.delay = 3});
      for (int step = 0; step < 20; ++step) delayed.finish_step({});
    });
  });
  EXPECT_NE(text.find("round 0, bucket 0: rank 1 has another anchor"), std::string::npos) << text;
}

TEST(StreamDelayed, RefusesWhatOnlyTheCpuHas) {
  run_local(1, [](Group& group) {
    std::vector<float> weights(40);
    const auto text = [&](const char* delay, const char* correction, std::size_t covered) {
      DelayOptions options;
      options.parse_delay(delay);
      options.parse_correction(correction);
      LedgerPieces pieces;
      add_pieces(pieces, weights.data(), 0, covered);
      return error_of([&] {
        StreamDelayedAverage({group}, {Bucket::single(0, "a", 40)}, {pieces},
                             Config::parse("dense"), options);
      });
    };
    EXPECT_EQ(text("3", "soft", 40), "");
    EXPECT_NE(text("auto:9", "soft", 40).find("auto:9"), std::string::npos);
    EXPECT_NE(text("3", "published", 40).find("published"), std::string::npos);
    EXPECT_NE(text("3", "soft", 39).find("expected 40 weights, got 39"), std::string::npos);
  });
}

}  // namespace
}  // namespace thinwire
