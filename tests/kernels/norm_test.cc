// norm_test.cc: the squared norm: its value, and one order of additions on every vector width.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/norm.h"

#include "tests/kernels/kernel_testing.h"

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
