// largest_test.cc: the largest magnitudes come first, and among equals the lower index.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/memory/largest.h"

#include <gtest/gtest.h>

#include <set>

namespace thinwire {
namespace {

TEST(Largest, LowerIndexAmongEquals) {
  const float values[] = {1.0f, -2.0f, 2.0f, 0.0f, -0.0f, 2.0f};
  std::vector<std::uint64_t> keys;
  for (std::uint32_t i = 0; i < 6; ++i) keys.push_back(magnitude_key(values[i], i));
  const std::uint64_t second = nth_largest(keys, 2);
  EXPECT_EQ(magnitude_of(second), 2.0f);
  EXPECT_EQ(index_of(second), 2u);
  EXPECT_EQ(std::set({index_of(keys[0]), index_of(keys[1])}), (std::set<std::uint32_t>{1, 2}));
  const std::uint64_t last = nth_largest(keys, 6);
  EXPECT_EQ(index_of(last), 4u);  // both zeros have the same magnitude
}

TEST(Largest, KeysKeepTheWholeIndex) {
  for (const std::uint32_t index : {0u, 1u, 0x7fffffffu, 0xffffffffu})
    EXPECT_EQ(index_of(magnitude_key(-3.5f, index)), index);
  EXPECT_EQ(magnitude_of(magnitude_key(-3.5f, 9)), 3.5f);
}

}  // namespace
}  // namespace thinwire
