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
  CscMemory memory(Bucket::single(0, "w", count), grid, {Accumulate::residual, 0},
                   {DType::bf16, 1});
  const auto x = gradient(Shape::normal, count, 1);
  std::vector<double> sums;
  memory.take_in(x, grid.chunk, sums);
  const std::vector<std::uint32_t> picks = {0, 1, 2, 5, 6, 9};
  std::vector<std::byte> out(2 * grid.packed(picks.size()));
  memory.send(picks, Velocity::mask, out);
  memory.take_in(std::vector<float>(count), grid.chunk, sums);
  State state;
  StateSaver saver(state);
  memory.visit_state(saver);
  for (std::size_t i = 0; i < count; ++i) {
    const bool sent = std::binary_search(picks.begin(), picks.end(), i / 4);
    const float rest = x[i] - from_bf16(to_bf16(x[i]));
    EXPECT_EQ(state.at("w/v").values[i], sent ? rest : x[i]) << i;
  }
}

}  // namespace thinwire::rest
