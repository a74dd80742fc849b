// partition_test.cc: every example belongs to one worker; the Dirichlet distribution; the order of
// a share.
// SPDX-License-Identifier: Apache-2.0
#include "apps/train/data_partition.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <set>

#include "apps/train/data.h"
#include "apps/train/data_order.h"
#include "thinwire/core/error.h"

namespace thinwire::train {
namespace {

using Examples = std::vector<std::int64_t>;

// The class of example i is i % classes.
Examples turns(std::int64_t examples, std::int64_t classes) {
  Examples all(static_cast<std::size_t>(examples));
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::int64_t>(i) % classes;
  return all;
}

Shares make(const std::string& text, std::int64_t examples, std::uint64_t seed, int workers) {
  return {Partition::parse(text), examples, turns(examples, 10), seed, workers};
}

// The number of examples of each class that a worker has.
std::vector<double> counts_of(const Examples& share) {
  std::vector<double> counts(10);
  for (const std::int64_t example : share) ++counts[static_cast<std::size_t>(example % 10)];
  return counts;
}

std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Partition, RoundTripsAndRefusesTheRest) {
  for (const char* text : {"iid", "contiguous", "dirichlet:0.5", "dirichlet:100"})
    EXPECT_EQ(Partition::parse(text).str(), text);
  EXPECT_EQ(Partition::parse("dirichlet:0.50").str(), "dirichlet:0.5");
  for (const char* bad : {"", "IID", "dirichlet", "dirichlet:", "dirichlet:0", "dirichlet:-1",
                          "dirichlet:nan", "dirichlet:inf", "dirichlet:1e7", "dirichlet:1,2"}) {
    const std::string text = error_of([&] { Partition::parse(bad); });
    EXPECT_NE(text.find("expected iid, contiguous, or dirichlet:ALPHA"), std::string::npos) << text;
  }
}

TEST(Partition, GivesEveryExampleToExactlyOneWorker) {
  for (const char* text :
       {"contiguous", "dirichlet:1e-6", "dirichlet:0.05", "dirichlet:1", "dirichlet:1000"}) {
    for (const int workers : {1, 2, 3, 8, 64}) {
      const Shares shares = make(text, 1001, 3, workers);
      ASSERT_EQ(shares.shares().size(), static_cast<std::size_t>(workers));
      Examples all;
      for (const Examples& share : shares.shares()) {
        EXPECT_FALSE(share.empty()) << text << ", " << workers << " workers";
        all.insert(all.end(), share.begin(), share.end());
      }
      std::ranges::sort(all);
      Examples expected(1001);
      std::iota(expected.begin(), expected.end(), 0);
      EXPECT_EQ(all, expected) << text << ", " << workers << " workers";
    }
  }
  // As many workers as examples: one each.
  const Shares single = make("dirichlet:0.01", 7, 1, 7);
  for (const Examples& share : single.shares()) EXPECT_EQ(share.size(), std::size_t{1});
}

TEST(Partition, FollowsFromItsSeed) {
  EXPECT_EQ(make("dirichlet:0.5", 500, 4, 4).shares(), make("dirichlet:0.5", 500, 4, 4).shares());
  EXPECT_NE(make("dirichlet:0.5", 500, 4, 4).shares(), make("dirichlet:0.5", 500, 5, 4).shares());
}

// Within a class, a worker's share p has mean 1/W and variance (1/W)(1 - 1/W) / (W alpha + 1).
TEST(Partition, HasTheVarianceOfDirichlet) {
  constexpr int workers = 4, seeds = 100;
  for (const double alpha : {0.1, 1.0, 10.0}) {
    double sum = 0, squares = 0;
    for (std::uint64_t seed = 0; seed < seeds; ++seed) {
      const Partition partition{Partition::Kind::dirichlet, alpha};
      const Shares shares(partition, 10'000, turns(10'000, 10), seed, workers);
      for (const double count : counts_of(shares.shares()[1])) {
        sum += count / 1000;
        squares += count / 1000 * (count / 1000);
      }
    }
    const double mean = sum / (10 * seeds), variance = squares / (10 * seeds) - mean * mean;
    EXPECT_NEAR(mean, 0.25, 0.04) << alpha;
    EXPECT_NEAR(variance / (0.25 * 0.75 / (workers * alpha + 1)), 1, 0.15) << alpha;
  }
}

TEST(Partition, StretchesFollowEachOther) {
  const auto shares = make("contiguous", 11, 1, 3).shares();
  EXPECT_EQ(shares[0], (Examples{0, 1, 2}));
  EXPECT_EQ(shares[1], (Examples{3, 4, 5, 6}));
  EXPECT_EQ(shares[2], (Examples{7, 8, 9, 10}));
}

TEST(Partition, IidIsTheOrderOfAlways) {
  EXPECT_EQ(make("iid", 1797, 42, 4).batch(1000, 3, 4), batch_examples(1797, 42, 1000, 3, 4, 4));
}

// Batches of 4 from a share of 13: they cross from one pass to the next.
TEST(Partition, AWorkerPassesThroughItsShareShuffledAnew) {
  const Shares shares = make("contiguous", 26, 6, 2);
  for (const int rank : {0, 1}) {
    const Examples& share = shares.shares()[static_cast<std::size_t>(rank)];
    Examples seen;
    for (std::uint64_t step = 0; step < share.size(); ++step)
      for (const std::int64_t example : shares.batch(step, rank, 4)) seen.push_back(example);
    std::set<Examples> orders;
    for (auto at = seen.begin(); at != seen.end(); at += std::ssize(share)) {
      Examples pass(at, at + std::ssize(share));
      orders.insert(pass);
      std::ranges::sort(pass);
      EXPECT_EQ(pass, share);
    }
    EXPECT_EQ(orders.size(), std::size_t{4});
  }
}

TEST(Partition, ABatchMayBeLongerThanAShare) {
  const Examples batch = make("contiguous", 6, 1, 3).batch(5, 1, 5);
  EXPECT_EQ(std::ranges::count(batch, 2) + std::ranges::count(batch, 3), 5);
}

TEST(Partition, IsTheSameOnEveryMachine) {
  const Shares shares = make("dirichlet:0.5", 1000, 1, 4);
  std::vector<std::size_t> sizes;
  for (const Examples& share : shares.shares()) sizes.push_back(share.size());
  EXPECT_EQ(sizes, (std::vector<std::size_t>{240, 237, 220, 303}));
  EXPECT_EQ(shares.batch(7, 2, 4), (Examples{542, 662, 881, 852}));
}

TEST(Partition, SaysWhatIsWrong) {
  EXPECT_EQ(
      error_of([] { Shares(Partition::parse("dirichlet:0.5"), 100, {}, 1, 2); }),
      "partition 'dirichlet:0.5' deals out classes, but the examples of this data have none; for "
      "text use contiguous or iid");
  EXPECT_EQ(error_of([] { make("contiguous", 3, 1, 4); }),
            "partition 'contiguous': 3 training examples for 4 workers, expected at least one "
            "each; use fewer workers");
  EXPECT_NE(error_of([] { make("contiguous", 30, 1, 4).batch(0, 4, 1); }), "no error");
}

// The labels that a worker sees are those of its share, also through the images of a
// scaled data set.
TEST(Partition, DataKnowsItsClasses) {
  for (const char* spec : {"synthetic:1x4x4:5", "scaled:6:synthetic:1x4x4:5"}) {
    const auto data = open_data(spec, 1);
    const Examples classes = data->train_classes();
    ASSERT_EQ(classes.size(), std::size_t{10'000});
    const Shares shares(Partition::parse("dirichlet:0.1"), 10'000, classes, 1, 3);
    const Examples chosen = shares.batch(2, 1, 20);
    const Batch batch = data->train_batch_of(chosen, {1, 2, 1});
    for (std::size_t i = 0; i < chosen.size(); ++i) {
      EXPECT_EQ(batch.target[static_cast<std::int64_t>(i)].item<std::int64_t>(),
                classes[static_cast<std::size_t>(chosen[i])]);
    }
  }
}

}  // namespace
}  // namespace thinwire::train
