// estimate_test.cc: the estimated time of a step, from reports made by hand.
// SPDX-License-Identifier: Apache-2.0
#include "apps/train/estimate.h"

#include <gtest/gtest.h>

namespace thinwire::train {
namespace {

Report report(double encode, double decode) {
  Report report;
  report.encode_seconds = encode;
  report.decode_seconds = decode;
  return report;
}

// Whoever is slowest in a stage holds all others up, and that may be someone else in the next one.
TEST(StepEstimate, EveryStageWaitsForItsSlowest) {
  StepEstimate estimate(Crew{0, 3, 3, 3});
  estimate.add(0, 5, report(1, 2));
  estimate.add(1, 3, report(7, 0));
  estimate.add(2, 4, report(2, 0));
  EXPECT_DOUBLE_EQ(estimate.seconds(12, 0.5, 0.25), 5 + 7 + 2 + 0.5 + 0.25);
}

TEST(StepEstimate, CountsTheStepAndNotWhatWasBefore) {
  StepEstimate estimate(Crew{0, 1, 1, 1});
  estimate.add(0, 1, report(10, 20));
  estimate.add(0, 1, report(11, 22));
  EXPECT_DOUBLE_EQ(estimate.seconds(3, 0, 0), 1 + 1 + 2);
}

// The rest of the exchange is sums, which ranks share. Of two ranks each sums everything.
TEST(StepEstimate, SumsAreShared) {
  for (const auto& [world, share] : {std::pair{2, 1.0}, std::pair{4, 0.25}}) {
    StepEstimate estimate(Crew{0, world, world, world});
    for (int rank = 0; rank < world; ++rank) estimate.add(rank, 0, report(1, 0));
    EXPECT_DOUBLE_EQ(estimate.seconds(world + 8, 0, 0), 1 + 8 * share) << world;
  }
}

// Servers begin when the workers' messages are there.
TEST(StepEstimate, TheSlowestServerComesOnTop) {
  StepEstimate estimate(Crew{0, 4, 4, 2});
  estimate.add(0, 5, report(1, 2));
  estimate.add(1, 5, report(1, 2));
  estimate.add(2, 0, report(0, 3));
  estimate.add(3, 0, report(1, 6));
  EXPECT_DOUBLE_EQ(estimate.seconds(16, 0, 0), 5 + 1 + 2 + (1 + 6));
}

}  // namespace
}  // namespace thinwire::train
