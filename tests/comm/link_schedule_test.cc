// link_schedule_test.cc: jitter and outages as functions of number and time, and arrival times
// against a slow reference that merges the outages of all links.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/comm/link_schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "thinwire/core/random.h"

namespace thinwire {
namespace {

const Link flaky = Link::parse("100mbit,20ms,jitter=5ms,outage=2s/30s,seed=7");

TEST(LinkJitter, StaysBetweenLatencyAndLatencyPlusJitter) {
  const LinkSchedule schedule(flaky, 4);
  double sum = 0;
  for (std::uint64_t number = 0; number < 2000; ++number) {
    const double one = schedule.latency(number, 1), six = schedule.latency(number, 6);
    EXPECT_TRUE(one >= 0.020 && one < 0.025) << one;
    EXPECT_TRUE(six >= 6 * 0.020 && six < 6 * 0.025) << six;
    sum += one;
  }
  // The slowest of four messages has 4/5 of the jitter on average.
  EXPECT_NEAR(sum / 2000, 0.020 + 0.005 * 4 / 5, 1e-4);
  EXPECT_EQ(schedule.latency(3, 0), 0);
}

TEST(LinkJitter, DiffersByMessageStepAndSeedAndNotByTheOrderOfAsking) {
  Link other = flaky;
  other.seed = 8;
  const LinkSchedule schedule(flaky, 4), again(flaky, 4), reseeded(other, 4);
  const double later = again.latency(9, 1);
  EXPECT_NE(schedule.latency(8, 1), later);
  EXPECT_EQ(schedule.latency(9, 1), later);
  EXPECT_NE(reseeded.latency(9, 1), later);
  EXPECT_NE(schedule.latency(9, 2) - 0.020, 2 * (later - 0.020) + 0.020);
}

TEST(LinkJitter, NoneIsTheLatencyTimesTheSteps) {
  EXPECT_DOUBLE_EQ(LinkSchedule(Link::parse("1gbit,20ms"), 8).latency(5, 14), 14 * 0.020);
}

TEST(LinkOutages, LieOneInEachWindow) {
  const LinkSchedule schedule(flaky, 4);
  double down = 0;
  std::vector<int> quarters(4);
  for (std::uint64_t w = 0; w < 1000; ++w) {
    for (int rank = 0; rank < 4; ++rank) {
      const Outage outage = schedule.outage(rank, w);
      const double first = 30.0 * static_cast<double>(w);
      EXPECT_GE(outage.begin, first);
      EXPECT_LE(outage.end, first + 30 + 1e-9);
      EXPECT_TRUE(outage.end - outage.begin > 0.999 && outage.end - outage.begin < 3.001);
      down += outage.end - outage.begin;
      ++quarters[std::min<std::size_t>(3, static_cast<std::size_t>((outage.begin - first) / 7))];
    }
  }
  EXPECT_NEAR(down / 4000, 2, 0.05);
  for (const int n : quarters) EXPECT_NEAR(n, 1000, 150);
}

TEST(LinkOutages, DifferByRankAndWindowAndSeed) {
  Link other = flaky;
  other.seed = 8;
  const LinkSchedule schedule(flaky, 4), reseeded(other, 4);
  const double begin = schedule.outage(1, 5).begin;
  EXPECT_NE(schedule.outage(2, 5).begin, begin);
  EXPECT_NE(schedule.outage(1, 6).begin - 30, begin);
  EXPECT_NE(reseeded.outage(1, 5).begin, begin);
}

TEST(LinkOutages, AreTheSameOnEveryMachine) {
  const Outage outage = LinkSchedule(flaky, 2).outage(1, 3);
  EXPECT_DOUBLE_EQ(outage.begin, 107.38840282590797);
  EXPECT_DOUBLE_EQ(outage.end, 109.65280414255074);
}

// The time at which these links have been up together for `seconds`: walks through all their
// outages in order.
double reference(const LinkSchedule& schedule, const std::vector<int>& ranks, double from,
                 double seconds) {
  std::vector<Outage> outages;
  for (const int rank : ranks)
    for (std::uint64_t w = 0; w < 60; ++w) outages.push_back(schedule.outage(rank, w));
  std::ranges::sort(outages, {}, &Outage::begin);
  double time = from;
  for (const Outage& outage : outages) {
    if (outage.end <= time) continue;
    if (outage.begin - time >= seconds && outage.begin > time) break;
    seconds -= std::max(0.0, outage.begin - time);
    time = outage.end;
  }
  return time + seconds;
}

class LinkPassage : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, LinkPassage, ::testing::Values(2, 3, 4, 8));

// Outages so long and frequent that several ranks' outages fall into one collective.
TEST_P(LinkPassage, IsThatOfTheReference) {
  const int ranks = GetParam();
  const LinkSchedule schedule(Link::parse("inf,outage=0.2s/2s,seed=3"), ranks);
  std::vector<int> all(static_cast<std::size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) all[static_cast<std::size_t>(rank)] = rank;
  int sooner = 0;
  for (std::uint64_t i = 0; i < 300; ++i) {
    const double from = 20.0 * double{random_unit(1, i)}, seconds = double{random_unit(2, i)};
    const double chained = reference(schedule, all, from, seconds);
    EXPECT_NEAR(schedule.passed(Pattern::chain, from, seconds), chained, 1e-9) << i;
    double slowest = 0;
    for (int a = 0; a < ranks; ++a)
      for (int b = a + 1; b < ranks; ++b)
        slowest = std::max(slowest, reference(schedule, {a, b}, from, seconds));
    EXPECT_NEAR(schedule.passed(Pattern::direct, from, seconds), slowest, 1e-9) << i;
    sooner += slowest < chained - 1e-9 ? 1 : 0;
  }
  EXPECT_EQ(sooner > 0, ranks > 2);  // two ranks are one pair
}

TEST(LinkPassageEdges, NothingPassesWhileALinkIsDown) {
  const LinkSchedule schedule(flaky, 2);
  const Outage outage = schedule.outage(1, 0);
  const double middle = (outage.begin + outage.end) / 2;
  for (const Pattern pattern : {Pattern::chain, Pattern::direct}) {
    EXPECT_EQ(schedule.passed(pattern, middle, 0), outage.end);
    EXPECT_EQ(schedule.passed(pattern, outage.begin, 0), outage.end);
    EXPECT_EQ(schedule.passed(pattern, outage.end, 0), outage.end);
    // Two thirds before the outage, the rest after it.
    EXPECT_NEAR(schedule.passed(pattern, outage.begin - 0.1, 0.15), outage.end + 0.05, 1e-9);
  }
}

TEST(LinkPassageEdges, SteadyLinksAndSingleRanksNeverWait) {
  EXPECT_EQ(LinkSchedule(Link::parse("1gbit,20ms"), 4).passed(Pattern::chain, 3, 2), 5);
  EXPECT_EQ(LinkSchedule(flaky, 1).passed(Pattern::direct, 3, 500), 503);
}

// The shortest possible gaps, at times as late as a long training: the search ends, and
// at a later time.
TEST(LinkPassageEdges, EndsAtAnyTime) {
  const LinkSchedule schedule(Link::parse("inf,outage=1us/2us"), 3);
  for (std::uint64_t i = 0; i < 1000; ++i) {
    const double from = 1e5 * double{random_unit(4, i)};
    EXPECT_GE(schedule.passed(Pattern::direct, from, 1e-6), from + 1e-6 * 0.999);
  }
}

}  // namespace
}  // namespace thinwire
