// signum_test.cc: momentum and its signs: their meaning, and the same bits on every vector width.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/signum.h"

#include "tests/kernels/kernel_testing.h"

namespace thinwire {
namespace {

class Signum : public EachTarget {};
THINWIRE_EACH_TARGET(Signum);

TEST_P(Signum, FastEqualsReference) {
  for_all_shapes([](Content content, std::size_t size, std::size_t offset) {
    Guarded<float> g(make_content(content, 1, size), offset);
    const auto plain = content >= Content::nan_first ? Content::ties : content;
    Guarded<float> fast(make_content(plain, 2, size), (offset + 1) % 4);
    Guarded<float> slow(fast.view(), offset);
    const std::vector<std::uint8_t> room((size + 7) / 8, 0xff);
    Guarded<std::uint8_t> negative(room, offset), zero(room, 0), negative_slow(room, 0),
        zero_slow(room, 1);
    const bool a = signum_pass(0.9f, g.data(), fast.data(), size, negative.data(), zero.data());
    const bool b = signum_pass_reference(0.9f, g.data(), slow.data(), size, negative_slow.data(),
                                         zero_slow.data());
    ASSERT_EQ(a, b);
    ASSERT_TRUE(content < Content::nan_first || size == 0 || !a);
    ASSERT_TRUE(same_bits(fast.view(), slow.view()));
    ASSERT_TRUE(same_bits(negative.view(), negative_slow.view()));
    ASSERT_TRUE(same_bits(zero.view(), zero_slow.view()));
    ASSERT_TRUE(g.intact() && fast.intact() && negative.intact() && zero.intact());
  });
}

// momentum 1/2 is exact: m' = m/2 + g/2. The last element would overflow and keeps its momentum.
TEST(SignumMeaning, ByHand) {
  const std::vector<float> g = {2, -2, 0, -1, -0.0f, -std::numeric_limits<float>::infinity()};
  std::vector<float> m = {4, 0, 0, 1, -0.0f, -3};
  std::uint8_t negative = 0xff, zero = 0xff;
  EXPECT_FALSE(signum_pass_reference(0.5f, g.data(), m.data(), 6, &negative, &zero));
  EXPECT_EQ(m, (std::vector<float>{3, -1, 0, 0, 0, -3}));
  EXPECT_EQ(negative, 0b100010);
  EXPECT_EQ(zero, 0b011100);
}

}  // namespace
}  // namespace thinwire
