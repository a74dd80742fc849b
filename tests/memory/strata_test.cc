// strata_test.cc: strata cover all blocks, none twice, and any block of a stratum may be drawn.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/memory/strata.h"

#include <gtest/gtest.h>

#include <set>

namespace thinwire {
namespace {

TEST(Strata, EachDrawsOneOfItsOwnBlocks) {
  for (std::uint64_t blocks = 1; blocks <= 23; ++blocks) {
    for (std::uint64_t count = 1; count <= blocks; ++count) {
      const Strata strata{blocks, count};
      std::uint64_t next = 0;
      std::set<std::uint32_t> drawn;
      for (std::uint64_t i = 0; i < count; ++i) {
        ASSERT_EQ(strata.first(i), next);
        const std::uint32_t length = strata.length(i);
        ASSERT_TRUE(length == blocks / count || length == (blocks + count - 1) / count);
        next += length;
        for (std::uint64_t stream = 0; stream < 200; ++stream) {
          const std::uint32_t block = strata.pick(stream, i);
          ASSERT_GE(block, strata.first(i));
          ASSERT_LT(block, next);
          drawn.insert(block);
        }
      }
      EXPECT_EQ(next, blocks);
      EXPECT_EQ(drawn.size(), blocks) << count;
    }
  }
}

}  // namespace
}  // namespace thinwire
