// optimizer_test.cc: SGD and Adam on flat buffers equal torch's, also with momentum inside the
// scheme. Learning rates follow their schedule. No torch here.
// SPDX-License-Identifier: Apache-2.0
#include "apps/train/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <utility>

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

State state_of(Optimizer& optimizer, const std::vector<Bucket>& buckets) {
  State state;
  StateSaver saver(state);
  optimizer.visit_state(saver, buckets);
  return state;
}

void expect_same_bits_in_torch(const Settings& settings) {
  const std::vector<Bucket> buckets = {Bucket::single(0, "w", size)};
  Optimizer loops(settings, buckets), torch(settings, buckets);
  std::vector<float> here = random_values(1), there = here;
  for (unsigned step = 0; step < 6; ++step) {
    std::vector<float> gradient = random_values(10 + step);
    loops.step(buckets[0], 0.1f, gradient, here);
    torch.enqueue_step(buckets[0], 0.1f, gradient, there);
    ASSERT_TRUE(here == there) << settings.config.str() << " " << settings.optimizer;
  }
  EXPECT_TRUE(state_of(loops, buckets) == state_of(torch, buckets));
}

// What a GPU does, here on the CPU: every product and sum is rounded, as in the loops.
TEST(Optimizer, HasTheSameBitsInTorch) {
  for (const char* scheme : {"dense", "dgc:momentum=0.9", "dgc:momentum=0.9,nesterov=on"}) {
    for (const double momentum : {0.0, 0.9}) {
      for (const double decay : {0.0, 0.01}) {
        expect_same_bits_in_torch(settings_of(scheme, momentum, false, decay));
        expect_same_bits_in_torch(settings_of(scheme, momentum, true, decay));
      }
    }
  }
  for (const char* optimizer : {"adam", "adamw"}) {
    Settings settings = settings_of("dense", 0, false, 0.01);
    settings.optimizer = optimizer;
    expect_same_bits_in_torch(settings);
  }
}

// Gradients that already include their momentum, as dgc sends them when it sends everything.
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

// Votes have no momentum, so w -= rate (vote + decay w), as in the signum paper.
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

Settings adam_of(const std::string& optimizer, double decay) {
  Settings settings;
  settings.config = Config::parse("dense");
  settings.optimizer = optimizer;
  settings.decay = decay;
  return settings;
}

// The rules of torch.optim.Adam and AdamW, in double precision.
struct ExpectedAdam {
  double beta1, beta2, epsilon, decay;
  bool decoupled;
  std::vector<double> w, m = std::vector<double>(size), v = std::vector<double>(size);
  double power1 = 1, power2 = 1;

  void step(double rate, const std::vector<float>& gradient) {
    power1 *= beta1;
    power2 *= beta2;
    for (std::size_t i = 0; i < size; ++i) {
      const double g = decoupled ? gradient[i] : gradient[i] + decay * w[i];
      if (decoupled) w[i] -= rate * decay * w[i];
      m[i] = beta1 * m[i] + (1 - beta1) * g;
      v[i] = beta2 * v[i] + (1 - beta2) * g * g;
      w[i] -= rate * (m[i] / (1 - power1)) / (std::sqrt(v[i] / (1 - power2)) + epsilon);
    }
  }
};

// Gradients of very different sizes, zeros among them, so that epsilon matters.
std::vector<float> scaled_values(unsigned seed) {
  std::vector<float> values = random_values(seed);
  for (std::size_t i = 0; i < size; ++i) values[i] *= std::pow(0.1f, static_cast<float>(i % 11));
  values[size - 1] = 0;
  return values;
}

TEST(Optimizer, IsTorchsAdam) {
  const std::vector<Bucket> buckets = {Bucket::single(0, "w", size)};
  for (const char* kind : {"adam", "adamw"}) {
    for (const bool usual : {true, false}) {
      Settings settings = adam_of(kind, 0.1);
      if (!usual) settings.beta1 = 0.5, settings.beta2 = 0.9, settings.epsilon = 1e-3;
      Optimizer optimizer(settings, buckets);
      std::vector<float> weights = random_values(1);
      ExpectedAdam expected{settings.beta1.value_or(0.9),    settings.beta2.value_or(0.999),
                            settings.epsilon.value_or(1e-8), 0.1,
                            settings.optimizer == "adamw",   {weights.begin(), weights.end()}};
      for (unsigned step = 0; step < 50; ++step) {
        const float rate = 0.01f / static_cast<float>(1 + step % 5);
        const std::vector<float> gradient = scaled_values(10 + step);
        optimizer.step(buckets[0], rate, gradient, weights);
        expected.step(rate, gradient);
        for (std::size_t i = 0; i < size; ++i)
          ASSERT_NEAR(weights[i], expected.w[i], 2e-6) << kind << " " << step << " " << i;
      }
    }
  }
}

// Two parameters in two buckets, one of which has taken one step fewer.
TEST(Optimizer, ResumesAdamExactly) {
  Bucket pair = Bucket::single(0, "a", size);
  pair.parameters[0].count = 60;
  pair.parameters[0].shape = {60};
  pair.parameters.push_back({"b", 60, size - 60, {size - 60}});
  const std::vector<Bucket> buckets = {pair, Bucket::single(1, "c", size)};
  const Settings settings = adam_of("adamw", 0.01);
  Optimizer whole(settings, buckets), resumed(settings, buckets);
  std::vector<std::vector<float>> weights = {random_values(1), random_values(2)};
  const auto steps = [&](Optimizer& optimizer, unsigned from, unsigned to) {
    for (unsigned step = from; step < to; ++step) {
      optimizer.step(buckets[0], 0.01f, random_values(10 + step), weights[0]);
      if (step != 3) optimizer.step(buckets[1], 0.01f, random_values(50 + step), weights[1]);
    }
  };
  steps(whole, 0, 7);
  State state;
  StateSaver saver(state);
  whole.visit_state(saver, buckets);
  EXPECT_EQ(state.size(), 8u);  // two moments of a, b and c, two counts
  for (const auto& [name, entry] : state) EXPECT_EQ(entry.share, Share::replicated) << name;
  StateLoader loader(state);
  resumed.visit_state(loader, buckets);
  const auto saved = weights;
  steps(whole, 7, 12);
  const auto expected = std::exchange(weights, saved);
  steps(resumed, 7, 12);
  EXPECT_EQ(weights, expected);
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
