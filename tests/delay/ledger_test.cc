// ledger_test.cc: the laws of delayed averaging on thousands of schedules of delays, outages and
// missed rounds, without communication: a seed determines what arrives when.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/delay/ledger.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <random>

#include "tests/gradients.h"
#include "thinwire/core/error.h"

namespace thinwire {
namespace {

constexpr std::size_t count = 37;

// One worker: its weights, its ledger, and a compressor that sends some elements and
// keeps the rest.
struct Worker {
  std::vector<float> weights = std::vector<float>(count, 0.5f);
  std::unique_ptr<Ledger> ledger;
  std::vector<std::vector<float>> sent;  // by round, as sent
  std::vector<float> residual = std::vector<float>(count);
  std::vector<double> applied = std::vector<double>(count);  // by the optimizer
  std::size_t acknowledged = 0;
  std::vector<std::vector<float>> anchors;  // after each acknowledgement
};

struct Job {
  DelayOptions options;
  bool compress = false;
  std::vector<Worker> workers;
  std::vector<std::vector<float>> means;  // of complete rounds
  std::mt19937 random;

  Job(std::uint32_t seed) : random(seed) {
    const auto kind = draw(4);
    options.correction = draw(2) == 0 ? Correction::soft : Correction::ledger;
    if (kind == 1) options.correction = Correction::none;
    if (kind == 2) options.correction = Correction::pull;
    compress = draw(2) == 0;
    if (kind == 0) {
      options.book_b = draw(3) == 0;
      if (!options.book_b && draw(3) == 0) options.share = 0.25 * (1 + draw(4));
    }
    if (kind != 1 && options.correction != Correction::soft && draw(3) == 0) options.clip = 0.5;
    options.delay = draw(20);
    options.check();
    workers.resize(2 + draw(4));
    for (Worker& worker : workers)
      worker.ledger = std::make_unique<Ledger>(options, Bucket::single(0, "w", count),
                                               std::span(worker.weights), workers.size());
  }

  std::uint32_t draw(std::uint32_t below) { return static_cast<std::uint32_t>(random() % below); }

  void train(Worker& worker) {
    std::normal_distribution<float> normal(0, 0.01f);
    for (std::size_t i = 0; i < count; ++i) {
      const float before = worker.weights[i];
      worker.weights[i] += normal(random);
      worker.applied[i] += static_cast<double>(worker.weights[i]) - before;
    }
    if (draw(2) == 0) worker.ledger->step();  // otherwise several at once are one step
  }

  void close(Worker& worker, bool take_part) {
    std::vector<float> message(count);
    worker.ledger->close(message, take_part);
    for (std::size_t i = 0; i < count && compress; ++i) {
      const float whole = message[i] + worker.residual[i];
      message[i] = draw(3) == 0 ? whole : 0;
      worker.residual[i] = whole - message[i];
    }
    worker.sent.push_back(message);
    const std::size_t round = means.size();
    for (const Worker& other : workers) {
      if (other.sent.size() <= round) return;
    }
    std::vector<float> mean(count);
    for (std::size_t i = 0; i < count; ++i) {
      for (const Worker& other : workers) mean[i] += other.sent[round][i];
      mean[i] /= static_cast<float>(workers.size());
    }
    means.push_back(mean);
  }

  // Delivers the next mean to the worker, if there is one.
  bool acknowledge(Worker& worker) {
    if (worker.acknowledged == means.size()) return false;
    const std::vector<float>& mean = means[worker.acknowledged];
    const Ledger::Due due = worker.ledger->acknowledge(mean, worker.sent[worker.acknowledged]);
    ++worker.acknowledged;
    const double longest = options.clip * std::sqrt(due.mean);
    worker.ledger->settle(options.clip > 0 && std::sqrt(due.correction) > longest
                              ? longest / std::sqrt(due.correction)
                              : options.effective_pace());
    const auto anchor = worker.ledger->anchor();
    worker.anchors.emplace_back(anchor.begin(), anchor.end());
    return true;
  }

  // Law: own weights = anchor + own updates that the anchor lacks.
  void check_books(const Worker& worker) const {
    if (options.correction == Correction::pull) return;
    const std::vector<double> lead = worker.ledger->lead();
    for (std::size_t i = 0; i < count; ++i)
      ASSERT_NEAR(worker.weights[i], worker.ledger->anchor()[i] + lead[i], 2e-5);
  }

  // Law: the anchor after round r has the same bits on all workers.
  void check_anchors() const {
    for (const Worker& worker : workers) {
      const std::size_t both = std::min(worker.anchors.size(), workers[0].anchors.size());
      for (std::size_t r = 0; r < both; ++r) ASSERT_EQ(worker.anchors[r], workers[0].anchors[r]);
    }
  }

  // Law: what all workers applied = what was acknowledged + what is in messages, open rounds and
  // compressors. (No work is lost, whatever was late or missing.)
  void check_mass() const {
    std::vector<double> missing(count);
    for (const Worker& worker : workers) {
      const std::vector<double> open = worker.ledger->open();
      for (std::size_t i = 0; i < count; ++i) {
        missing[i] += worker.applied[i] - open[i];
        for (const auto& message : worker.sent) missing[i] -= message[i];
        missing[i] -= worker.residual[i];
      }
    }
    for (std::size_t i = 0; i < count; ++i) ASSERT_NEAR(missing[i], 0, 2e-4);
    for (const Worker& worker : workers) {
      std::vector<double> expected(count, 0.5);
      for (std::size_t r = 0; r < worker.acknowledged; ++r) {
        for (std::size_t i = 0; i < count; ++i) expected[i] += means[r][i];
      }
      for (std::size_t i = 0; i < count; ++i)
        ASSERT_NEAR(worker.ledger->anchor()[i], expected[i], 2e-5);
    }
  }

  // Law: corrections sum to zero. When every worker has acknowledged the same rounds, the mean
  // model is the start plus the mean of all updates, as if there were no delay. Book a leaves out
  // what the compressors hold; `none` and a share leave out what is in flight; clipping postpones
  // its part.
  void check_mean_model() const {
    if (options.correction == Correction::none || options.clip > 0) return;
    if (options.effective_share() != 1 || options.measures_share()) return;
    // A pull refers to a model that earlier pulls have changed. It sums to zero only if all workers
    // made the same pulls, which DelayedAverage guarantees (law_anchors in training.h).
    if (options.correction == Correction::pull) return;
    if (compress && !options.book_b) return;
    for (const Worker& worker : workers) {
      if (worker.acknowledged != workers[0].acknowledged) return;
    }
    for (std::size_t i = 0; i < count; ++i) {
      double mean = 0, expected = 0.5;
      for (const Worker& worker : workers) {
        mean += worker.weights[i] / static_cast<double>(workers.size());
        expected += worker.applied[i] / static_cast<double>(workers.size());
      }
      ASSERT_NEAR(mean, expected, 5e-5);
    }
  }

  void run() {
    const std::uint32_t events = 150;
    std::vector<std::uint32_t> down(workers.size());  // events until the link is up again
    for (std::uint32_t event = 0; event < events; ++event) {
      const std::uint32_t j = draw(static_cast<std::uint32_t>(workers.size()));
      Worker& worker = workers[j];
      if (down[j] > 0) --down[j];
      if (draw(40) == 0) down[j] = draw(30);
      const std::uint32_t what = draw(4);
      if (what < 2) train(worker);
      if (what == 2 && worker.sent.size() < means.size() + 6) close(worker, down[j] == 0);
      if (what == 3 && down[j] == 0) acknowledge(worker);
      check_books(worker);
      check_mean_model();
      if (::testing::Test::HasFatalFailure()) return;
    }
    check_mass();
    drain();
  }

  void drain() {
    std::size_t rounds = 0;
    for (const Worker& worker : workers) rounds = std::max(rounds, worker.sent.size());
    for (Worker& worker : workers) {
      while (worker.sent.size() <= rounds) close(worker, true);
    }
    for (Worker& worker : workers) {
      while (acknowledge(worker)) check_books(worker);
    }
    check_mean_model();
    check_mass();
    check_anchors();
    for (Worker& worker : workers) {
      worker.ledger->come_home();
      ASSERT_EQ(worker.ledger->in_flight(), 0u);
      ASSERT_EQ(worker.weights, workers[0].weights);
      check_books(worker);
    }
  }
};

TEST(Ledger, LawsHoldOnThousandsOfSchedules) {
  const std::uint32_t schedules = testing::sanitized ? 300 : 3000;
  for (std::uint32_t seed = 0; seed < schedules; ++seed) {
    Job job(seed);
    job.run();
    ASSERT_FALSE(HasFatalFailure())
        << "schedule " << seed << ", correction " << job.options.correction_str();
  }
}

TEST(Ledger, StateGoesOnExactly) {
  for (const char* text :
       {"soft", "ledger", "ledger:share=0.25", "ledger:book=b,clip=0.3", "pull", "none"}) {
    DelayOptions options;
    options.parse_correction(text);
    options.delay = 4;
    const Bucket bucket = Bucket::single(0, "w", 5);
    std::vector<float> weights(5, 1), message(5), mean(5, 0.01f), own(5, 0.02f);
    Ledger ledger(options, bucket, weights, 4);
    const auto step = [&](Ledger& books, std::vector<float>& w) {
      for (float& value : w) value -= 0.03f;
      books.step();
      for (float& value : w) value -= 0.01f;
      books.close(message);
      if (books.in_flight() > 3) books.acknowledge(mean, own), books.settle(0.5);
    };
    for (int i = 0; i < 6; ++i) step(ledger, weights);
    if (text == std::string_view("soft")) {
      std::vector<float> before = weights;
      for (float& value : weights) value += 1;
      ledger.step();
      EXPECT_LT(weights[0] - before[0], 0.9f) << "the share to be resumed is not the first one";
    }
    for (float& value : weights) value += 0.02f;
    ledger.step();  // starts the next round
    State state;
    StateSaver saver(state);
    ledger.visit_state(saver);
    std::vector<float> other(5, 7);
    Ledger resumed(options, bucket, other, 4);
    StateLoader loader(state);
    resumed.visit_state(loader);
    for (int i = 0; i < 6; ++i) {
      step(ledger, weights);
      step(resumed, other);
      ASSERT_EQ(weights, other) << text;
      ASSERT_TRUE(std::ranges::equal(ledger.anchor(), resumed.anchor())) << text;
    }
  }
}

// The share of an update of 1 that a worker applies at once, after 200 rounds in which the fraction
// `common` of the power of its updates was common to all workers and the rest was noise.
float share_after(float common, std::size_t workers) {
  DelayOptions options;
  options.delay = 1;
  const std::size_t elements = 1000;
  std::vector<float> weights(elements), message(elements), mean(elements);
  Ledger ledger(options, Bucket::single(0, "w", elements), weights, workers);
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  for (int round = 0; round < 200; ++round) {
    for (std::size_t i = 0; i < elements; ++i) {
      const float all = std::sqrt(common) * normal(random);
      const float noise = std::sqrt(1 - common) * normal(random);
      weights[i] += all + noise;
      mean[i] = all + noise / static_cast<float>(workers);
    }
    ledger.close(message);
    ledger.acknowledge(mean, {});
    ledger.settle(1);
  }
  const float before = weights[0];
  weights[0] += 1;
  ledger.close(message);
  EXPECT_NEAR(message[0], 1, 1e-5);
  return weights[0] - before;
}

TEST(Ledger, MakesAtOnceWhatTheOthersDoToo) {
  EXPECT_NEAR(share_after(0, 4), 0.5, 0.02) << "all is noise";
  EXPECT_NEAR(share_after(0.2f, 4), 0.8, 0.05);
  EXPECT_NEAR(share_after(0.2f, 2), 0.8, 0.05) << "two that agree by chance are no more common";
  EXPECT_NEAR(share_after(0.5f, 4), 1, 1e-5);
  EXPECT_NEAR(share_after(1, 4), 1, 1e-5);
  EXPECT_NEAR(share_after(0, 1), 1, 1e-5) << "nobody else";
}

TEST(Ledger, RefusesWhatDoesNotFit) {
  DelayOptions options;
  std::vector<float> weights(3), message(3);
  Ledger ledger(options, Bucket::single(0, "w", 3), weights, 2);
  EXPECT_THROW(ledger.acknowledge(message, {}), Error);
  ledger.close(message);
  EXPECT_THROW(ledger.come_home(), Error);
  std::vector<float> short_one(2);
  EXPECT_THROW(ledger.close(short_one), Error);
  EXPECT_THROW(ledger.acknowledge(short_one, {}), Error);
  options.correction = Correction::published;
  EXPECT_THROW(Ledger(options, Bucket::single(0, "w", 3), weights, 2), Error);
}

TEST(DelayOptions, TextsGoThereAndBack) {
  for (const char* text : {"soft", "soft:share=0.75", "ledger", "ledger:share=0.5",
                           "ledger:book=b,clip=1", "pull:rate=0.02", "published", "none"}) {
    DelayOptions options;
    options.parse_correction(text);
    options.check();
    EXPECT_EQ(options.correction_str(), text);
  }
  for (const char* text : {"0", "20", "auto:40"}) {
    DelayOptions options;
    options.parse_delay(text);
    EXPECT_EQ(options.delay_str(), text);
  }
}

TEST(DelayOptions, ChoosesWhatWasNotGiven) {
  DelayOptions options;
  EXPECT_EQ(options.correction, Correction::soft);
  EXPECT_FALSE(options.measures_share()) << "FedAvg";
  EXPECT_EQ(options.effective_share(), 1) << "FedAvg";
  EXPECT_EQ(options.effective_pace(), 1) << "FedAvg";
  options.delay = 20;
  EXPECT_TRUE(options.measures_share());
  EXPECT_DOUBLE_EQ(options.effective_pace(), 0.05);
  options.parse_correction("soft:book=b");
  EXPECT_FALSE(options.measures_share());
  EXPECT_EQ(options.effective_share(), 1);
  options.parse_correction("soft:share=0.75,pace=0.25");
  EXPECT_FALSE(options.measures_share());
  EXPECT_EQ(options.effective_share(), 0.75);
  EXPECT_EQ(options.effective_pace(), 0.25);
  options.parse_correction("ledger");
  EXPECT_EQ(options.effective_share(), 1);
  EXPECT_EQ(options.effective_pace(), 1);
}

TEST(DelayOptions, RefusesNonsense) {
  DelayOptions options;
  for (const char* text : {"", "-1", "auto", "auto:0", "5x", "1000001"})
    EXPECT_THROW(options.parse_delay(text), Error) << text;
  for (const char* text :
       {"leger", "pull:rate=2", "ledger:share=-0.1", "ledger:book=c", "pull:x=1"})
    EXPECT_THROW(options.parse_correction(text), Error) << text;
  for (const char* text :
       {"pull:share=0.5", "none:clip=1", "ledger:rate=0.1", "pull:book=b", "published:clip=1",
        "ledger:book=b,share=0.5", "pull:pace=0.5", "soft:clip=1"}) {
    DelayOptions clash;
    clash.parse_correction(text);
    EXPECT_THROW(clash.check(), Error) << text;
  }
  DelayOptions no_steps;
  no_steps.local_steps = 0;
  EXPECT_THROW(no_steps.check(), Error);
}

}  // namespace
}  // namespace thinwire
