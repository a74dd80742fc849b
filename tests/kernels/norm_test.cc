// norm_test.cc: the squared norm: its value, and one order of additions on every vector width.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/norm.h"

#include <algorithm>

#include "tests/kernels/kernel_testing.h"
#include "thinwire/core/error.h"

namespace thinwire {
namespace {

class Norm : public EachTarget {};
THINWIRE_EACH_TARGET(Norm);

TEST_P(Norm, FastEqualsReference) {
  for_all_shapes([](Content content, std::size_t size, std::size_t offset) {
    Guarded<float> x(make_content(content, 1, size), offset);
    const double fast = squared_norm(x.data(), size);
    const double slow = squared_norm_reference(x.data(), size);
    const bool wild = content >= Content::nan_first && size > 0;
    ASSERT_EQ(std::isfinite(slow), !wild);
    ASSERT_EQ(std::isnan(fast), std::isnan(slow));
    if (!std::isnan(slow)) {
      ASSERT_EQ(std::bit_cast<std::uint64_t>(fast), std::bit_cast<std::uint64_t>(slow));
    }
  });
}

TEST_P(Norm, NonFiniteAtEveryPosition) {
  for (std::size_t at = 0; at < 70; ++at) {
    std::vector<float> x(70, 1.0f);
    x[at] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_TRUE(std::isnan(squared_norm(x.data(), x.size())));
    x[at] = -std::numeric_limits<float>::infinity();
    EXPECT_EQ(squared_norm(x.data(), x.size()), std::numeric_limits<double>::infinity());
  }
}

// The order, written as it is defined: sums of blocks, then levels of pairs.
double plain_norm(const std::vector<float>& x) {
  std::vector<double> level;
  for (std::size_t start = 0; start < x.size(); start += 4096) {
    std::vector<double> sums(32);
    for (std::size_t i = start; i < std::min(start + 4096, x.size()); ++i)
      sums[(i - start) % 32] += static_cast<double>(x[i]) * x[i];
    for (; sums.size() > 1; sums.resize(sums.size() / 2)) {
      for (std::size_t i = 0; i < sums.size() / 2; ++i) sums[i] += sums[i + sums.size() / 2];
    }
    level.push_back(sums[0]);
  }
  while (level.size() > 1) {
    std::vector<double> next;
    for (std::size_t i = 0; i < level.size(); i += 2)
      next.push_back(i + 1 < level.size() ? level[i] + level[i + 1] : level[i]);
    level = next;
  }
  return level.empty() ? 0 : level[0];
}

TEST_P(Norm, OrderOfBlocksIsATreeOfPairs) {
  for (const std::size_t blocks : {0u, 1u, 2u, 3u, 4u, 5u, 6u, 7u, 8u, 11u, 31u, 64u, 65u}) {
    for (const std::size_t rest : {0u, 1u, 31u, 33u, 4095u}) {
      std::vector<float> x(4096 * blocks + rest);
      for (std::size_t i = 0; i < x.size(); ++i) x[i] = std::exp(20 * random_unit(5, i));
      const double expected = plain_norm(x);
      ASSERT_EQ(squared_norm(x.data(), x.size()), expected) << blocks << " blocks and " << rest;
      ASSERT_EQ(squared_norm_reference(x.data(), x.size()), expected);
    }
  }
}

TEST(NormValue, HalvesAreWidened) {
  const std::vector<std::uint16_t> f16 = {0x4200, 0xc400, 0x4a00}, bf16 = {0x4040, 0xc080, 0x4140};
  EXPECT_EQ(squared_norm_reference(DType::f16, f16.data(), 3), 169);
  EXPECT_EQ(squared_norm_reference(DType::bf16, bf16.data(), 3), 169);
  EXPECT_THROW(squared_norm_reference(DType::i8, f16.data(), 3), Error);
  EXPECT_THROW(squared_norm(DType::i8, f16.data(), 3), Error);
}

TEST(NormValue, HalvesHaveTheBitsOfTheReference) {
  for (const std::size_t count : {0u, 1u, 33u, 4095u, 4096u, 4097u, 3 * 4096u, 20'001u}) {
    std::vector<std::uint16_t> halves(count);
    for (std::size_t i = 0; i < count; ++i)
      halves[i] = static_cast<std::uint16_t>(0x3fff * random_unit(3, i));
    for (const DType type : {DType::f16, DType::bf16})
      EXPECT_EQ(squared_norm(type, halves.data(), count),
                squared_norm_reference(type, halves.data(), count))
          << name_of(type) << ' ' << count;
  }
}

TEST(NormValue, KnownSums) {
  const std::vector<float> x = {3, -4, 12};
  EXPECT_EQ(squared_norm(x.data(), x.size()), 169);
  const std::vector<float> large(100, std::numeric_limits<float>::max());
  EXPECT_TRUE(std::isfinite(squared_norm(large.data(), large.size())));
  const float tiny = std::numeric_limits<float>::denorm_min();
  EXPECT_EQ(squared_norm(&tiny, 1), 0x1p-298);
}

TEST(NormValue, CountsBeyondTwoToThe24) {
  const std::size_t count = (std::size_t{1} << 24) + 7;
  std::vector<float> x(count, 1.0f);
  EXPECT_EQ(squared_norm(x.data(), count), static_cast<double>(count));
  for (std::size_t i = 0; i < count; ++i) x[i] = random_unit(3, i) - 0.5f;
  EXPECT_EQ(squared_norm(x.data(), count), squared_norm_reference(x.data(), count));
}

}  // namespace
}  // namespace thinwire
