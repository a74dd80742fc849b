// average_test.cc: scaling in place, and the finite check of the same pass.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/average.h"

#include "tests/kernels/kernel_testing.h"

namespace thinwire {
namespace {

class Average : public EachTarget {};
THINWIRE_EACH_TARGET(Average);

TEST_P(Average, FastEqualsReference) {
  for_all_shapes([](Content content, std::size_t size, std::size_t offset) {
    const auto x = make_content(content, 1, size);
    for (const float factor : {1.0f / 3, 7.0f, 0.0f}) {
      Guarded<float> fast(x, offset), slow(x, offset);
      ASSERT_EQ(scale_finite(fast.data(), size, factor),
                scale_finite_reference(slow.data(), size, factor));
      ASSERT_TRUE(same_bits(fast.view(), slow.view()) && fast.intact());
    }
  });
}

TEST_P(Average, FindsWhatIsNotFiniteAtEveryPosition) {
  for (std::size_t at = 0; at < 70; ++at) {
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), 3e38f, -3e38f}) {
      std::vector<float> x(70, 1.0f);
      EXPECT_TRUE(scale_finite(x.data(), x.size(), 2.0f));
      x[at] = bad;
      EXPECT_FALSE(scale_finite(x.data(), x.size(), 2.0f));
      EXPECT_EQ(x[at == 0 ? 1 : 0], 4.0f);
    }
  }
}

}  // namespace
}  // namespace thinwire
