// forgotten_test.cc: what the memory of a sparse scheme knows after a step that was not taken, and
// quotas of nothing.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tests/gradients.h"
#include "thinwire/memory/csc_grid.h"
#include "thinwire/memory/dgc.h"
#include "thinwire/memory/strata.h"
#include "thinwire/memory/summed.h"
#include "thinwire/memory/warmup.h"

namespace thinwire::forgotten {

using namespace testing;

static State state_of(DgcMemory& memory) {
  State state;
  StateSaver saver(state);
  memory.visit_state(saver);
  return state;
}

// A bad step may have moved a threshold anywhere: every one is unknown again, and the momentum is
// gone.
TEST(DgcMemory, ForgettingMakesThresholdsUnknown) {
  const Bucket bucket{4, {{"a", 0, 300, {}}, {"b", 300, 500, {}}}};
  for (const bool per_layer : {false, true}) {
    DgcMemory memory(bucket, {.per_layer = per_layer});
    Survivors survivors;
    const std::vector<float> g = gradient(Shape::normal, 800, 1);
    ASSERT_TRUE(memory.step(g, 1, 0.05, survivors));
    const std::size_t thresholds = per_layer ? 2 : 1;
    for (std::size_t i = 0; i < thresholds; ++i)
      EXPECT_GT(state_of(memory).at("bucket4/threshold" + std::to_string(i)).number, 0);
    EXPECT_EQ(state_of(memory).size(), 4 + 1 + thresholds);
    memory.undo(survivors);
    memory.forget(g, 1);
    for (std::size_t i = 0; i < thresholds; ++i)
      EXPECT_EQ(state_of(memory).at("bucket4/threshold" + std::to_string(i)).number, 0);
    for (std::size_t i = 0; i < 800; ++i) {
      EXPECT_NEAR(memory.residual()[i], 0, 1e-6) << i;
      EXPECT_EQ(memory.velocity()[i], 0) << i;
    }
  }
}

// As many as the cap are sent; of more, as many as are wanted.
TEST(DgcMemory, SendsUpToItsCap) {
  const Quota quota = Quota::of(100, 0.1);
  for (const std::size_t some : {quota.most, quota.most + 1}) {
    DgcMemory memory(Bucket::single(0, "w", 100), {.accumulate = Accumulate::residual});
    std::vector<float> g(100);
    for (std::size_t i = 0; i < some; ++i) g[3 * i] = static_cast<float>(i + 1);
    Survivors survivors;
    ASSERT_TRUE(memory.step(g, 1, 0.1, survivors));
    EXPECT_EQ(survivors.size(), some == quota.most ? quota.most : quota.wanted);
  }
}

TEST(Quota, OfNothingIsNothing) {
  EXPECT_EQ(Quota::of(0, 0.5).wanted, 0u);
  EXPECT_EQ(Quota::of(0, 0.5).most, 0u);
  EXPECT_EQ(Quota::of(1, 0.001).wanted, 1u);
  EXPECT_EQ(Quota::of(1, 1).most, 1u);
  EXPECT_EQ(Quota::of(10, 1).wanted, 10u);
  EXPECT_EQ((CscGrid{0, 4}.share(1)), 0u);
  EXPECT_EQ((CscGrid{1, 4}.share(0.001)), 1u);
  EXPECT_EQ((CscGrid{40, 4}.share(1)), 10u);
  EXPECT_EQ((CscGrid{40, 4}.share(0.24)), 2u);
  EXPECT_EQ((CscGrid{40, 4}.share(0.26)), 3u);
}

// What nobody set.
TEST(Memory, DefaultsAreTheDocumentedOnes) {
  const DgcMemoryOptions options;
  EXPECT_EQ(options.accumulate, Accumulate::pool);
  EXPECT_EQ(options.momentum, 0.9f);
  EXPECT_FALSE(options.exact);
  EXPECT_FALSE(options.per_layer);
  EXPECT_FALSE(options.mask);
  EXPECT_EQ(CscGrid().elements, 0u);
  EXPECT_EQ(CscGrid().chunk, 1u);
  EXPECT_EQ(SummedValues().world, 1);
  EXPECT_EQ(SummedRule().world, 1);
  EXPECT_EQ(SummedRule().share, 1);
  EXPECT_EQ(Strata().blocks, 0u);
  EXPECT_EQ(Strata().count, 1u);
  EXPECT_EQ(Warmup().density, 0.001);
  EXPECT_EQ(Warmup().steps, 0u);
  EXPECT_EQ(Threshold().value, 0);
  EXPECT_EQ(Quota().wanted + Quota().most, 0u);
}

}  // namespace thinwire::forgotten
