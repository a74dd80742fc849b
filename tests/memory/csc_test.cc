// csc_test.cc: chunks out of a bucket and back, the rounding error that stays, and one result for
// any number of threads.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/memory/csc.h"

#include <gtest/gtest.h>

#include "tests/gradients.h"
#include "thinwire/core/parallel.h"

namespace thinwire {
namespace {

using testing::gradient;
using testing::Shape;

TEST(CscGrid, GatherAndScatterAreInverse) {
  for (const std::size_t elements : {1u, 2u, 15u, 16u, 17u, 100u}) {
    for (const std::size_t chunk : {1u, 2u, 3u, 16u, 200u}) {
      const CscGrid grid{elements, chunk};
      std::vector<std::uint32_t> picks;
      for (std::uint32_t c = 0; c < grid.count(); ++c) {
        if (c % 3 != 1 || c + 1 == grid.count()) picks.push_back(c);
      }
      const auto x = gradient(Shape::normal, elements, 1);
      std::vector<float> packed(grid.packed(picks.size()), -1.0f), back(elements, -1.0f);
      grid.gather(x.data(), picks, packed.data());
      grid.scatter(packed.data(), picks, back.data());
      for (std::size_t i = 0; i < elements; ++i) {
        const bool picked = std::binary_search(picks.begin(), picks.end(), i / chunk);
        ASSERT_EQ(back[i], picked ? x[i] : 0.0f);
      }
    }
  }
}

TEST(CscGrid, PaddingIsZero) {
  const CscGrid grid{10, 4};
  const std::vector<float> x(10, 1.0f);
  const std::vector<std::uint32_t> picks = {0, 2};
  std::vector<float> packed(8, 5.0f);
  grid.gather(x.data(), picks, packed.data());
  EXPECT_EQ(packed, (std::vector<float>{1, 1, 1, 1, 1, 1, 0, 0}));
  EXPECT_EQ(grid.packed(3), 10u);
  EXPECT_EQ((CscGrid{0, 4}.share(0.5)), 0u);
}

TEST(SummedValues, SentAndRestMakeTheWhole) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (const int world : {1, 3, 8}) {
      const SummedValues values{dtype, world};
      auto x = gradient(Shape::normal, 3000, 2);
      x[7] = 1e6f;
      std::vector<float> rest = x, written = x, average(x.size());
      std::vector<std::byte> bytes(values.bytes(x.size()));
      values.write(written, bytes);
      values.keep_rest(rest);
      ASSERT_TRUE(values.read(bytes, average));
      for (std::size_t i = 0; i < x.size(); ++i)
        ASSERT_NEAR(average[i] * static_cast<float>(world) + rest[i], x[i], 2e-6 * std::abs(x[i]));
    }
  }
}

TEST(CscMemory, AnyNumberOfThreadsGivesTheSameBits) {
  const std::size_t count = 700001;
  const CscGrid grid{count, 1000};
  const auto run = [&](int workers) {
    set_threads(workers);
    CscMemory memory(Bucket::single(0, "w", count), grid, {Accumulate::nesterov, 0.9f},
                     {DType::bf16, 3});
    std::vector<double> sums;
    for (std::uint64_t step = 0; step < 3; ++step) {
      memory.take_in(gradient(Shape::heavy, count, step), grid.chunk, sums);
      const std::vector<std::uint32_t> picks = {0, 17, 300, 699, 700};
      std::vector<std::byte> out(2 * grid.packed(picks.size()));
      memory.send(picks, Velocity::mask, out);
    }
    State state;
    StateSaver saver(state);
    memory.visit_state(saver);
    state["sums"].values.assign(sums.begin(), sums.end());
    set_threads(1);
    return serialize(state);
  };
  EXPECT_EQ(run(1), run(4));
}

}  // namespace
}  // namespace thinwire
