// optimizer_test.cc: SGD on flat buffers is torch's, and with momentum inside the scheme it is the
// same; learning rates follow their schedule. No torch here.
// SPDX-License-Identifier: Apache-2.0
#include "apps/train/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "apps/train/schedule.h"
#include "thinwire/core/error.h"

namespace thinwire::train {
namespace {

constexpr std::size_t size = 67;

std::vector<float> random_values(unsigned seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(size);
  for (float& value : values) value = normal(engine);
  return values;
}

Settings settings_of(const std::string& scheme, double momentum, bool nesterov, double decay) {
  Settings settings;
  settings.config = Config::parse(scheme);
  settings.momentum = momentum;
  settings.nesterov = nesterov;
  settings.decay = decay;
  return settings;
}

// The rule of torch.optim.SGD, in double precision.
struct Expected {
  double momentum, decay;
  bool nesterov;
  std::vector<double> w, v = std::vector<double>(size);

  void step(double rate, const std::vector<float>& gradient) {
    for (std::size_t i = 0; i < size; ++i) {
      const double d = gradient[i] + decay * w[i];
      v[i] = momentum * v[i] + d;
      w[i] -= rate * (nesterov ? d + momentum * v[i] : v[i]);
    }
  }
};

void expect_near(const std::vector<float>& weights, const Expected& expected) {
  for (std::size_t i = 0; i < size; ++i) EXPECT_NEAR(weights[i], expected.w[i], 1e-5) << i;
}

TEST(Optimizer, IsTorchsSgd) {
  const std::vector<Bucket> buckets = {Bucket::single(0, "w", size)};
  for (const double momentum : {0.0, 0.9}) {
    for (const bool nesterov : {false, true}) {
      Optimizer optimizer(settings_of("dense", momentum, nesterov, 0.01), buckets);
      std::vector<float> weights = random_values(1);
      Expected expected{momentum, 0.01, nesterov, {weights.begin(), weights.end()}};
      if (nesterov && momentum == 0) continue;  // refused by check()
      for (unsigned step = 0; step < 6; ++step) {
        const std::vector<float> gradient = random_values(10 + step);
        optimizer.step(buckets[0], 0.1f, gradient, weights);
        expected.step(0.1, gradient);
      }
      expect_near(weights, expected);
    }
  }
}

// Gradients that already carry their momentum, as dgc sends them when it sends everything.
TEST(Optimizer, LeavesMomentumToTheScheme) {
  const std::vector<Bucket> buckets = {Bucket::single(0, "w", size)};
  Optimizer optimizer(settings_of("dgc:momentum=0.9", 0.9, false, 0.01), buckets);
  std::vector<float> weights = random_values(1), carried(size);
  Expected expected{0.9, 0.01, false, {weights.begin(), weights.end()}};
  for (unsigned step = 0; step < 6; ++step) {
    const std::vector<float> gradient = random_values(10 + step);
    for (std::size_t i = 0; i < size; ++i) carried[i] = 0.9f * carried[i] + gradient[i];
    optimizer.step(buckets[0], 0.1f, carried, weights);
    expected.step(0.1, gradient);
  }
  expect_near(weights, expected);
}

// Votes have no momentum to go with: w -= rate (vote + decay w), as the paper of signum has it.
TEST(Optimizer, DecaysDirectlyBesideVotes) {
  const std::vector<Bucket> buckets = {Bucket::single(0, "w", size)};
  Optimizer optimizer(settings_of("signum", 0.9, false, 0.01), buckets);
  std::vector<float> weights = random_values(1);
  Expected expected{0, 0.01, false, {weights.begin(), weights.end()}};
  for (unsigned step = 0; step < 6; ++step) {
    const std::vector<float> votes = random_values(10 + step);
    optimizer.step(buckets[0], 0.1f, votes, weights);
    expected.step(0.1, votes);
  }
  expect_near(weights, expected);
}

TEST(Schedule, FollowsItsShape) {
  Schedule constant = Schedule::parse("constant");
  constant.peak = 0.5;
  constant.warmup = 4;
  EXPECT_DOUBLE_EQ(constant.at(0, 100, 10), 0.125);
  EXPECT_DOUBLE_EQ(constant.at(3, 100, 10), 0.5);
  EXPECT_DOUBLE_EQ(constant.at(99, 100, 10), 0.5);
  Schedule linear = Schedule::parse("linear"), cosine = Schedule::parse("cosine");
  linear.peak = cosine.peak = 1;
  EXPECT_DOUBLE_EQ(linear.at(0, 100, 10), 1);
  EXPECT_DOUBLE_EQ(linear.at(75, 100, 10), 0.25);
  EXPECT_NEAR(cosine.at(50, 100, 10), 0.5, 1e-12);
  Schedule step = Schedule::parse("step:2,3.5");
  step.peak = 1;
  EXPECT_DOUBLE_EQ(step.at(19, 100, 10), 1);
  EXPECT_NEAR(step.at(20, 100, 10), 0.1, 1e-12);
  EXPECT_NEAR(step.at(35, 100, 10), 0.01, 1e-12);
}

TEST(Schedule, RefusesNonsense) {
  for (const char* text : {"", "slow", "step:", "step:a", "step:2,2", "step:-1"}) {
    EXPECT_THROW(Schedule::parse(text), Error) << text;
  }
}

}  // namespace
}  // namespace thinwire::train
