// summed_test.cc: the elements of sums of halves stay within a range that every sum can hold.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/memory/summed.h"

#include <gtest/gtest.h>

namespace thinwire {
namespace {

TEST(Summed, AnElementOfAnF16SumHasHalfOfItsRange) {
  const SummedRule rule{DType::f16, 2, 0.5f};
  EXPECT_EQ(rule.limited(32767.5f), 32767.5f);
  EXPECT_EQ(rule.limited(-32767.5f), -32767.5f);
  EXPECT_EQ(rule.limited(32768.5f), 32768.0f);
  EXPECT_EQ(rule.limited(-1e30f), -32768.0f);
  EXPECT_EQ((SummedRule{DType::bf16, 2, 0.5f}.limited(1e30f)), 1e30f);
}

}  // namespace
}  // namespace thinwire
