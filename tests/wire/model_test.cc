// model_test.cc: the gap coder's model before the first gap, number by number, against the
// reference: for densities at which a branch of the tree has almost no probability, too.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tests/wire/reference_decoder.h"
#include "thinwire/wire/gap_rule.h"

namespace thinwire::model {

TEST(GapModel, StartsAsTheReference) {
  for (const std::uint64_t extent : {1u, 2u, 3u, 64u, 1000u, 4097u, ~0u}) {
    const std::uint64_t stride = 1 + extent / 5000;
    for (std::uint64_t count = 1; count <= extent; count += stride) {
      const gap_rule::Model model(count, extent);
      const reference::GapModel expected(extent, count);
      for (std::size_t node = 1; node < 32; ++node) {
        ASSERT_EQ(model.length[node].set, expected.length[node].p) << count << " of " << extent;
        ASSERT_EQ(model.length[node].seen, expected.length[node].c);
      }
      for (std::size_t bits = 2; bits <= 32; ++bits) {
        for (std::size_t node = 1; node < 4; ++node) {
          ASSERT_EQ(model.mantissa[bits][node].set, expected.mantissa[bits][node].p)
              << count << " of " << extent << ", " << bits << " bits";
          ASSERT_EQ(model.mantissa[bits][node].seen, expected.mantissa[bits][node].c);
        }
      }
    }
  }
}

}  // namespace thinwire::model
