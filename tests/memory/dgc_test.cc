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
    for (const std::uint32_t i : passing) u[i] = v[i] = 0;
    sent = passing;
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
  for (const auto accumulate : {Accumulate::residual, Accumulate::momentum, Accumulate::nesterov}) {
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
    EXPECT_NEAR(static_cast<double>(sum) / steps, static_cast<double>(quota.wanted),
                0.1 * static_cast<double>(quota.wanted));
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
  DgcMemory memory(Bucket::single(0, "w", count), {});
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
