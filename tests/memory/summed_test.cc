// summed_test.cc: the elements of sums of halves stay within a range that every sum can hold, and
// the rule for one element is that of whole arrays.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/memory/summed.h"

#include <gtest/gtest.h>

#include <cstring>

#include "tests/gradients.h"

namespace thinwire {
namespace {

using testing::same_bits;

TEST(Summed, AnElementOfAnF16SumHasHalfOfItsRange) {
  const SummedRule rule{DType::f16, 2, 0.5f};
  EXPECT_EQ(rule.limited(32767.5f), 32767.5f);
  EXPECT_EQ(rule.limited(-32767.5f), -32767.5f);
  EXPECT_EQ(rule.limited(32768.5f), 32768.0f);
  EXPECT_EQ(rule.limited(-1e30f), -32768.0f);
  EXPECT_EQ((SummedRule{DType::bf16, 2, 0.5f}.limited(1e30f)), 1e30f);
}

// A GPU works by the rule, the CPU by arrays.
template <DType dtype>
void expect_the_rule_of_arrays() {
  using V = Element<dtype>;
  const std::vector<float> x = {0, -0.0f, 1, -3.25f, 0.1f, 70000, -1e9f, 32768, 1e-7f};
  for (const int world : {1, 3, 8}) {
    const SummedValues values{dtype, world};
    const SummedRule rule = values.rule();
    std::vector<float> written = x, rest = x, average(x.size()), by_rule(x.size());
    std::vector<std::byte> bytes(values.bytes(x.size()));
    ASSERT_EQ(bytes.size(), x.size() * sizeof(typename V::Stored));
    values.write(written, bytes);
    values.keep_rest(rest);
    ASSERT_TRUE(values.read(bytes, average));
    for (std::size_t i = 0; i < x.size(); ++i) {
      const typename V::Stored sent = rule.template sent<V>(x[i]);
      EXPECT_EQ(std::memcmp(&sent, bytes.data() + i * sizeof sent, sizeof sent), 0) << x[i];
      by_rule[i] = rule.template received<V>(sent);
      EXPECT_EQ(rule.rest(x[i]), rest[i]) << x[i];
    }
    EXPECT_TRUE(same_bits(by_rule, average)) << name_of(dtype) << world;
  }
}

TEST(Summed, TheRuleOfOneElementIsThatOfArrays) {
  expect_the_rule_of_arrays<DType::f32>();
  expect_the_rule_of_arrays<DType::f16>();
  expect_the_rule_of_arrays<DType::bf16>();
}

}  // namespace
}  // namespace thinwire
