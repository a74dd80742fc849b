// dgc_test.cc: the memory of sparse schemes against a plain reference: which elements are sent, and
// which stay.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/memory/dgc.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "tests/gradients.h"
#include "thinwire/core/parallel.h"
#include "thinwire/memory/warmup.h"

namespace thinwire {
namespace {

using testing::gradient;
using testing::same_bits;
using testing::Shape;

// One step, done in the obvious way: new u and v for every element, then sort those that pass.
struct Plain {
  std::vector<float> u, v;
  std::vector<std::uint32_t> sent;

  void step(const DgcMemoryOptions& options, std::span<const float> g, float threshold,
            const Quota& quota) {
    std::vector<float> next_u(u.size()), next_v(v.size());
    std::vector<std::uint32_t> passing;
    for (std::size_t i = 0; i < g.size(); ++i) {
      switch (options.accumulate) {
        case Accumulate::none:
          next_v[i] = g[i];
          break;
        case Accumulate::residual:
          next_v[i] = v[i] + g[i];
          break;
        case Accumulate::momentum:
          next_u[i] = options.momentum * u[i] + g[i];
          next_v[i] = v[i] + next_u[i];
          break;
        case Accumulate::nesterov:
          next_u[i] = options.momentum * (u[i] + g[i]);
          next_v[i] = v[i] + (next_u[i] + g[i]);
          break;
        case Accumulate::pool:
          pool(options, g[i], u[i], v[i], next_u[i], next_v[i]);
          break;
      }
      if (std::abs(next_v[i]) >= threshold && next_v[i] != 0)
        passing.push_back(static_cast<std::uint32_t>(i));
    }
    if (passing.size() > (options.exact ? quota.wanted : quota.most)) {
      std::stable_sort(passing.begin(), passing.end(),
                       [&](auto a, auto b) { return std::abs(next_v[a]) > std::abs(next_v[b]); });
      passing.resize(quota.wanted);
      std::sort(passing.begin(), passing.end());
    }
    u = next_u;
    v = next_v;
    for (const std::uint32_t i : passing) {
      if (options.mask) u[i] = 0;
      v[i] = 0;
    }
    sent = passing;
  }

  // The pool is what is still to come of all gradients. After a wait, part of it is due.
  static void pool(const DgcMemoryOptions& options, float g, float u, float v, float& next_u,
                   float& next_v) {
    const float m = options.momentum, over_m = 1 / m, over_rest = 1 / (1 - m);
    const float before = (1 - m) * v + m * u, after = before + g;
    float later = m * u / before;  // the share of the pool that was not due
    if (std::isnan(later) || later > 1) later = 1;
    later = std::max(later, 0.0f);
    later = std::max(m * later, std::min({0.995f * later, m, 0.5f}));
    next_v = (1 - later) * over_rest * after;
    next_u = later * over_m * after;
  }
};

// The threshold that the memory holds now.
double threshold_of(DgcMemory& memory) {
  State state;
  StateSaver saver(state);
  memory.visit_state(saver);
  return state.at("bucket0/threshold0").number;
}

void set_threshold(DgcMemory& memory, double threshold, double density) {
  State state;
  StateSaver saver(state);
  memory.visit_state(saver);
  state["bucket0/threshold0"].number = threshold;
  state["bucket0/density"].number = density;
  StateLoader loader(state);
  memory.visit_state(loader);
}

class DgcMemoryTest : public ::testing::Test {
 protected:
  void TearDown() override { set_threads(1); }
};

TEST_F(DgcMemoryTest, EqualsThePlainStep) {
  for (const auto accumulate :
       {Accumulate::residual, Accumulate::momentum, Accumulate::nesterov, Accumulate::pool}) {
    for (const std::size_t count : {1u, 2u, 7u, 64u, 1000u, 4097u, 20000u}) {
      for (const bool exact : {false, true}) {
        for (const Shape shape : {Shape::normal, Shape::heavy, Shape::constant, Shape::zero}) {
          const DgcMemoryOptions options{accumulate, 0.9f, exact, false};
          DgcMemory memory(Bucket::single(0, "w", count), options);
          Plain plain{std::vector<float>(count), std::vector<float>(count), {}};
          for (std::uint64_t step = 0; step < 8; ++step) {
            const double density = step < 4 ? 0.1 : 0.02;
            const auto g = gradient(shape, count, step);
            const Quota quota = Quota::of(count, density);
            // Steered: give the plain step the same threshold, and sometimes force a low one, so
            // that too many pass.
            double threshold = std::numeric_limits<float>::denorm_min();
            if (!exact && quota.wanted < count) {
              threshold = step % 3 == 2 ? 1e-4 : 0.7 * (static_cast<double>(step) + 1);
              set_threshold(memory, threshold, density);
            }
            Survivors survivors;
            ASSERT_TRUE(memory.step(g, 1.0f, density, survivors));
            plain.step(options, g, static_cast<float>(threshold), quota);
            ASSERT_EQ(survivors.index, plain.sent) << count << " step " << step;
            ASSERT_TRUE(same_bits(memory.residual(), plain.v));
            if (accumulate != Accumulate::residual) {
              ASSERT_TRUE(same_bits(memory.velocity(), plain.u));
            }
          }
        }
      }
    }
  }
}

// The threshold is carried from step to step, until the density changes. Every kind of memory, with
// factor masking and without.
TEST_F(DgcMemoryTest, CarriesItsThresholdOver) {
  const std::size_t count = 9000;
  int carried = 0;
  for (const auto accumulate : {Accumulate::none, Accumulate::residual, Accumulate::momentum,
                                Accumulate::nesterov, Accumulate::pool}) {
    for (const bool mask : {false, true}) {
      const DgcMemoryOptions options{accumulate, 0.5f, false, false, mask};
      DgcMemory memory(Bucket::single(0, "w", count), options);
      Plain plain{std::vector<float>(count), std::vector<float>(count), {}};
      for (std::uint64_t step = 0; step < 8; ++step) {
        const double density = step < 4 ? 0.05 : 0.1;
        const double known = step % 4 == 0 ? 0 : threshold_of(memory);
        const float threshold =
            std::max(static_cast<float>(known), std::numeric_limits<float>::denorm_min());
        std::vector<float> g = gradient(Shape::normal, count, step);
        for (float& x : g) x *= 0.01f;  // so that thresholds are small
        const Quota quota = Quota::of(count, density);
        Survivors survivors;
        ASSERT_TRUE(memory.step(g, 1.0f, density, survivors));
        plain.step(options, g, threshold, quota);
        ASSERT_EQ(survivors.index, plain.sent) << step;
        if (known == 0) {
          ASSERT_EQ(survivors.size(), quota.wanted);
        }
        if (survivors.size() != quota.wanted) ++carried;
        std::vector<float> sent = survivors.value;
        memory.settle(survivors, sent);
        if (has_residual(accumulate)) {
          ASSERT_TRUE(same_bits(memory.residual(), plain.v));
        } else {
          EXPECT_TRUE(memory.residual().empty());
        }
        if (has_momentum(accumulate)) {
          ASSERT_TRUE(same_bits(memory.velocity(), plain.u));
        }
      }
      memory.undo({});
      memory.forget(std::vector<float>(count), 1.0f);
      EXPECT_EQ(threshold_of(memory), 0);
    }
  }
  EXPECT_GT(carried, 18);
}

// What is still to come of all gradients, as SGD with momentum would hand it out: v now, and u in
// the steps that follow.
double pool_of(double m, float u, float v) { return (1 - m) * v + m * u; }

// After T steps without a send 1 - m^T of the pool is due, more than half only slowly, whatever
// came when; and nothing of any gradient is lost.
TEST_F(DgcMemoryTest, WhatIsDueGrowsWithTheWait) {
  const std::size_t count = 100;
  for (const float m : {0.9f, 0.99f, 0.3f}) {
    DgcMemoryOptions options;
    options.momentum = m;
    DgcMemory memory(Bucket::single(0, "w", count), options);
    std::vector<double> sums(count);
    double later = 1;
    for (int wait = 1; wait <= 100; ++wait) {
      const auto g = gradient(Shape::normal, count, static_cast<std::uint64_t>(wait));
      set_threshold(memory, 1e20, 0.01);  // nothing is sent
      Survivors survivors;
      ASSERT_TRUE(memory.step(g, 1.0f, 0.01, survivors));
      ASSERT_EQ(survivors.size(), 0u);
      later = std::max(m * later, std::min({0.995 * later, static_cast<double>(m), 0.5}));
      for (std::size_t i = 0; i < count; ++i) {
        sums[i] += g[i];
        const float u = memory.velocity()[i], v = memory.residual()[i];
        EXPECT_NEAR(pool_of(m, u, v), sums[i], 2e-4);
        EXPECT_NEAR((1 - m) * v, (1 - later) * sums[i], 2e-4) << wait;
      }
    }
  }
}

// Five weights on a parabola, one of which is sent in each step. With all of its momentum a weight
// diverges at rates at which it settles with masking, and with a pool, too.
TEST_F(DgcMemoryTest, APoolIsStableWhereMaskingIs) {
  constexpr float rate = 0.1f;  // times the curvature
  for (const auto& [accumulate, mask] :
       std::initializer_list<std::pair<Accumulate, bool>>{{Accumulate::momentum, false},
                                                          {Accumulate::momentum, true},
                                                          {Accumulate::pool, false}}) {
    DgcMemoryOptions options;
    options.accumulate = accumulate;
    options.exact = true;
    options.mask = mask;
    DgcMemory memory(Bucket::single(0, "w", 5), options);
    std::vector<float> w = {1, 0.9f, 0.8f, 0.7f, 0.6f};
    for (int step = 0; step < 400; ++step) {
      Survivors survivors;
      const std::vector<float> gradient = w;
      ASSERT_TRUE(memory.step(gradient, 1.0f, 0.2, survivors));
      memory.settle(survivors, survivors.value);
      for (std::size_t i = 0; i < survivors.size(); ++i)
        w[survivors.index[i]] -= rate * survivors.value[i];
    }
    float largest = 0;
    for (const float x : w) largest = std::max(largest, std::abs(x));
    if (accumulate == Accumulate::momentum && !mask) {
      EXPECT_GT(largest, 10);
    } else {
      EXPECT_LT(largest, 1e-3) << mask;
    }
  }
}

// When everything is sent, what is sent is the update of SGD with momentum, also where the values
// are coded roughly: then over time.
TEST_F(DgcMemoryTest, AtDensityOneItIsMomentum) {
  for (const auto accumulate : {Accumulate::momentum, Accumulate::nesterov, Accumulate::pool}) {
    const bool nesterov = accumulate == Accumulate::nesterov;
    DgcMemoryOptions options;
    options.accumulate = accumulate;
    DgcMemory memory(Bucket::single(0, "w", 1), options);
    double b = 0;
    for (int step = 0; step < 50; ++step) {
      Survivors survivors;
      const std::vector<float> gradient = {std::cos(static_cast<float>(step * step))};
      ASSERT_TRUE(memory.step(gradient, 1.0f, 1.0, survivors));
      ASSERT_EQ(survivors.size(), 1u);
      memory.settle(survivors, survivors.value);
      b = 0.9 * b + gradient[0];
      EXPECT_NEAR(survivors.value[0], nesterov ? gradient[0] + 0.9 * b : b, 1e-5) << step;
      EXPECT_NEAR(memory.velocity()[0], nesterov ? 0.9 * b : b, 1e-5) << step;
    }
  }
}

// Rounding of what was sent stays in the pool: in the end all of a gradient has been sent.
TEST_F(DgcMemoryTest, APoolLosesNothingToRoughCodes) {
  DgcMemory memory(Bucket::single(0, "w", 3), {});
  double sent[3] = {};
  for (int step = 0; step < 400; ++step) {
    Survivors survivors;
    const float g = step == 0 ? 1.0f : 0.0f;
    ASSERT_TRUE(memory.step(std::vector<float>{g, -3 * g, 0.1f * g}, 1.0f, 0.4, survivors));
    std::vector<float> coded;
    for (const float value : survivors.value) coded.push_back(std::copysign(0.75f, value));
    if (step > 100) coded = survivors.value;
    memory.settle(survivors, coded);
    for (std::size_t i = 0; i < survivors.size(); ++i) sent[survivors.index[i]] += coded[i];
  }
  EXPECT_NEAR(sent[0], 10, 1e-3);
  EXPECT_NEAR(sent[1], -30, 1e-3);
  EXPECT_NEAR(sent[2], 1, 1e-3);
}

// A list that was pruned to the cap, and to which nothing was added since, held too many.
TEST_F(DgcMemoryTest, OnlyTheWantedAreSentOfAPrunedList) {
  const std::size_t count = 4 * dgc_block;
  for (const double density : {0.0005, 0.01, 0.1}) {
    const Quota quota = Quota::of(count, density);
    for (const std::size_t full : {2 * dgc_block, 3 * dgc_block}) {
      DgcMemory memory(Bucket::single(0, "w", count), {.accumulate = Accumulate::residual});
      std::vector<float> g(count);
      for (std::size_t i = 0; i < full; ++i) g[i] = static_cast<float>(i + 1);
      Survivors survivors;
      ASSERT_TRUE(memory.step(g, 1.0f, density, survivors));
      ASSERT_EQ(survivors.size(), quota.wanted) << density << " " << full;
      EXPECT_EQ(survivors.index.front(), full - quota.wanted);
      EXPECT_EQ(threshold_of(memory), survivors.value.front());
      memory.undo(survivors);
      EXPECT_TRUE(same_bits(memory.residual(), g));
    }
  }
}

TEST_F(DgcMemoryTest, DoesNotDependOnThreads) {
  const std::size_t count = (1u << 19) + 13;
  for (const Shape shape : {Shape::heavy, Shape::constant}) {
    std::vector<std::vector<float>> gradients;
    for (std::uint64_t step = 0; step < 4; ++step)
      gradients.push_back(gradient(shape, count, step));
    for (const bool exact : {false, true}) {
      std::vector<std::vector<std::uint32_t>> sent;
      std::vector<std::vector<float>> residual;
      for (const int threads : {1, 2, 3}) {
        set_threads(threads);
        DgcMemory memory(Bucket::single(0, "w", count), {Accumulate::momentum, 0.9f, exact, false});
        Survivors survivors;
        for (std::size_t step = 0; step < gradients.size(); ++step) {
          if (step == 2)
            set_threshold(memory, 1e-6, 0.001);  // nearly everything passes: lists must be pruned
          memory.step(gradients[step], 1.0f, 0.001, survivors);
        }
        sent.push_back(survivors.index);
        residual.emplace_back(memory.residual().begin(), memory.residual().end());
      }
      for (std::size_t i = 1; i < sent.size(); ++i) {
        EXPECT_EQ(sent[i], sent[0]);
        EXPECT_TRUE(same_bits(residual[i], residual[0]));
      }
    }
  }
}

TEST_F(DgcMemoryTest, SteersIntoTheBand) {
  const std::size_t count = 400'000;
  const double density = 0.001;
  for (const Shape shape : {Shape::normal, Shape::heavy}) {
    DgcMemory memory(Bucket::single(0, "w", count), {});
    const Quota quota = Quota::of(count, density);
    std::size_t sum = 0;
    int below = 0;
    const int steps = 60;
    for (std::uint64_t step = 0; step < steps; ++step) {
      Survivors survivors;
      memory.step(gradient(shape, count, step), 1.0f, density, survivors);
      ASSERT_LE(survivors.size(), quota.most);
      below += survivors.size() * 5 < quota.wanted * 4 ? 1 : 0;
      sum += survivors.size();
    }
    // What waits grows in all of these steps, and the threshold follows.
    EXPECT_NEAR(static_cast<double>(sum) / steps, static_cast<double>(quota.wanted),
                0.15 * static_cast<double>(quota.wanted));
    EXPECT_LE(below, steps / 5);
  }
}

TEST_F(DgcMemoryTest, MoreThanSixteenMillionElements) {
  const std::size_t count = (1u << 24) + 5;
  DgcMemory memory(Bucket::single(0, "w", count), {Accumulate::residual, 0, false, false});
  std::vector<float> g(count, 1e-3f);
  g[3] = -2;
  g[count - 1] = 5;
  g[1u << 24] = 4;
  Survivors survivors;
  set_threshold(memory, 1.0, 1e-5);
  ASSERT_TRUE(memory.step(g, 1.0f, 1e-5, survivors));
  EXPECT_EQ(survivors.index,
            (std::vector<std::uint32_t>{3, 1u << 24, static_cast<std::uint32_t>(count - 1)}));
  EXPECT_EQ(survivors.value, (std::vector<float>{-2, 4, 5}));
}

TEST_F(DgcMemoryTest, LayersHaveTheirOwnQuota) {
  const Bucket bucket{0, {{"small", 0, 100, {}}, {"large", 100, 900, {}}, {"none", 1000, 0, {}}}};
  DgcMemory memory(bucket, {Accumulate::momentum, 0.9f, true, true});
  auto g = gradient(Shape::normal, 1000, 1);
  for (std::size_t i = 0; i < 100; ++i) g[i] *= 1e-6f;
  Survivors survivors;
  memory.step(g, 1.0f, 0.01, survivors);
  EXPECT_EQ(
      std::count_if(survivors.index.begin(), survivors.index.end(), [](auto i) { return i < 100; }),
      1);
  EXPECT_EQ(survivors.size(), 10u);
}

// The room of a frame: the caps of all quotas.
TEST(MostSurvivors, IsTheSumOfTheCaps) {
  const Bucket bucket{0, {{"a", 0, 100, {}}, {"none", 100, 0, {}}, {"b", 100, 900, {}}}};
  EXPECT_EQ(most_survivors(bucket, {.per_layer = true}, 0.01), 9u + 19u);
  EXPECT_EQ(most_survivors(bucket, {}, 0.01), 20u);
}

TEST_F(DgcMemoryTest, NonFiniteElementsNeverEnter) {
  const std::size_t count = 5000;
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    DgcMemory memory(Bucket::single(0, "w", count), {});
    Survivors survivors;
    memory.step(gradient(Shape::normal, count, 1), 1.0f, 0.01, survivors);
    auto g = gradient(Shape::normal, count, 2);
    g[0] = g[777] = g[count - 1] = bad;
    EXPECT_FALSE(memory.step(g, 1.0f, 0.01, survivors));
    memory.undo(survivors);
    for (const float value : memory.residual()) ASSERT_TRUE(std::isfinite(value));
    for (const float value : memory.velocity()) ASSERT_TRUE(std::isfinite(value));
  }
}

TEST_F(DgcMemoryTest, UndoIsAsIfNothingHadPassed) {
  const std::size_t count = 3000;
  const auto first = gradient(Shape::normal, count, 1), second = gradient(Shape::normal, count, 2);
  DgcMemory memory(Bucket::single(0, "w", count), {}), silent(Bucket::single(0, "w", count), {});
  Survivors survivors;
  memory.step(first, 1.0f, 0.01, survivors);
  memory.undo(survivors);
  set_threshold(silent, 1e30, 0.01);
  silent.step(first, 1.0f, 0.01, survivors);
  EXPECT_EQ(survivors.size(), 0u);
  EXPECT_TRUE(same_bits(memory.residual(), silent.residual()));
  EXPECT_TRUE(same_bits(memory.velocity(), silent.velocity()));
}

TEST_F(DgcMemoryTest, RoundingErrorStaysInTheResidual) {
  const std::size_t count = 1000;
  DgcMemory memory(Bucket::single(0, "w", count),
                   {.accumulate = Accumulate::momentum, .mask = true});
  Survivors survivors;
  memory.step(gradient(Shape::normal, count, 1), 1.0f, 0.05, survivors);
  ASSERT_GT(survivors.size(), 0u);
  const std::vector<float> sent(survivors.size(), 2.0f);
  memory.settle(survivors, sent);
  for (std::size_t i = 0; i < survivors.size(); ++i) {
    EXPECT_EQ(memory.residual()[survivors.index[i]], survivors.value[i] - 2.0f);
    EXPECT_EQ(memory.velocity()[survivors.index[i]], 0.0f);
  }
}

TEST_F(DgcMemoryTest, ThresholdBecomesUnknownWhenTooFewPass) {
  const std::size_t count = 200'000;
  DgcMemory memory(Bucket::single(0, "w", count), {});
  Survivors survivors;
  set_threshold(memory, 1e30, 0.01);
  memory.step(gradient(Shape::normal, count, 1), 1.0f, 0.01, survivors);
  EXPECT_EQ(survivors.size(), 0u);
  EXPECT_EQ(threshold_of(memory), 0);
  memory.step(gradient(Shape::normal, count, 2), 1.0f, 0.01, survivors);
  EXPECT_EQ(survivors.size(), 2000u);
}

// The bucket has one threshold, unless each layer has its own.
TEST_F(DgcMemoryTest, TheLargestOfTheBucketGo) {
  DgcMemory memory(Bucket{0, {{"small", 0, 50, {}}, {"large", 50, 50, {}}}}, {});
  std::vector<float> g(100, 1.0f);
  std::fill_n(g.begin() + 50, 50, 2.0f);
  Survivors survivors;
  ASSERT_TRUE(memory.step(g, 1.0f, 0.2, survivors));
  ASSERT_FALSE(survivors.index.empty());
  EXPECT_GE(survivors.index.front(), 50u);
}

// Without a threshold every element passes, so the first step sends exactly the largest.
TEST_F(DgcMemoryTest, TheFirstStepSendsExactlyTheQuota) {
  constexpr std::size_t count = 200'000;
  DgcMemory memory(Bucket::single(0, "w", count), {});
  Survivors survivors;
  ASSERT_TRUE(memory.step(gradient(Shape::normal, count, 1), 1.0f, 0.01, survivors));
  EXPECT_EQ(survivors.index.size(), 2000u);
  float smallest = std::numeric_limits<float>::max();
  for (const float value : survivors.value) smallest = std::min(smallest, std::abs(value));
  EXPECT_EQ(threshold_of(memory), smallest);
}

TEST_F(DgcMemoryTest, DensityOneSendsEverything) {
  constexpr std::size_t count = 200'000;
  DgcMemory memory(Bucket::single(0, "w", count), {});
  Survivors survivors;
  ASSERT_TRUE(memory.step(gradient(Shape::normal, count, 1), 1.0f, 1.0, survivors));
  EXPECT_EQ(survivors.index.size(), count);
}

TEST(Warmup, IsThePapers) {
  EXPECT_EQ(Warmup{}.density_at(0), 0.001);
  const Warmup warmup{0.001, 40};
  EXPECT_EQ(warmup.density_at(0), 0.25);
  EXPECT_EQ(warmup.density_at(9), 0.25);
  EXPECT_EQ(warmup.density_at(10), 0.0625);
  EXPECT_EQ(warmup.density_at(20), 0.015625);
  EXPECT_EQ(warmup.density_at(39), 0.00390625);
  EXPECT_EQ(warmup.density_at(40), 0.001);
  EXPECT_EQ((Warmup{0.1, 40}).density_at(15), 0.1);
  EXPECT_EQ((Warmup{0.1, 0}).density_at(0), 0.1);
}

TEST(Quota, AtLeastOneOfAny) {
  EXPECT_EQ(Quota::of(0, 0.5).wanted, 0u);
  EXPECT_EQ(Quota::of(1, 0.001).wanted, 1u);
  EXPECT_EQ(Quota::of(1'000'000, 0.001).wanted, 1000u);
  EXPECT_EQ(Quota::of(10, 1).wanted, 10u);
  EXPECT_EQ(Quota::of(10, 1).most, 10u);
}

}  // namespace
}  // namespace thinwire
