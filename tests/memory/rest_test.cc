// rest_test.cc: what rounding leaves of chunks that were sent: taken once, for each of them, also
// where they are neighbours.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tests/gradients.h"
#include "thinwire/core/half.h"
#include "thinwire/memory/csc.h"

namespace thinwire::rest {

using namespace testing;

TEST(CscMemory, NeighboursKeepTheirRoundingErrorsOnce) {
  const std::size_t count = 37;
  const CscGrid grid{count, 4};
  const auto x = gradient(Shape::normal, count, 1);
  const std::vector<std::uint32_t> picks = {0, 1, 2, 5, 6, 9};
  for (const bool look : {false, true}) {  // whoever looks at the state takes them, too
    CscMemory memory(Bucket::single(0, "w", count), grid, {Accumulate::residual, 0},
                     {DType::bf16, 1});
    const auto state = [&] {
      State saved;
      StateSaver saver(saved);
      memory.visit_state(saver);
      return saved;
    };
    std::vector<double> sums;
    memory.take_in(x, grid.chunk, sums);
    std::vector<std::byte> out(2 * grid.packed(picks.size()));
    memory.send(picks, Velocity::mask, out);
    const auto rest_of = [&](std::size_t i) {
      const bool sent = std::binary_search(picks.begin(), picks.end(), i / 4);
      return sent ? x[i] - from_bf16(to_bf16(x[i])) : x[i];
    };
    if (look) {
      const State looked = state();
      for (std::size_t i = 0; i < count; ++i) EXPECT_EQ(looked.at("w/v").values[i], rest_of(i));
    }
    memory.take_in(std::vector<float>(count), grid.chunk, sums);
    const State after = state();
    for (std::size_t i = 0; i < count; ++i) EXPECT_EQ(after.at("w/v").values[i], rest_of(i)) << i;
  }
}

}  // namespace thinwire::rest
