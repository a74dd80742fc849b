// threshold_test.cc: threshold quantisation: one quantum at most, and the same bits on every vector
// width.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/threshold.h"

#include "tests/kernels/kernel_testing.h"

namespace thinwire {
namespace {

class Threshold : public EachTarget {};
THINWIRE_EACH_TARGET(Threshold);

// The arrays of one call, between guards.
struct ThresholdArrays {
  ThresholdArrays(std::span<const float> r0, std::size_t offset)
      : r(r0, offset),
        plus(std::vector<std::uint8_t>((r0.size() + 7) / 8, 0xff), (offset + 1) % 4),
        minus(std::vector<std::uint8_t>((r0.size() + 7) / 8, 0xff), (offset + 2) % 4) {}

  void run(decltype(&threshold_pass) pass, float tau, const float* g, bool with_r) {
    tally = pass(tau, g, with_r ? r.data() : nullptr, r.view().size(), plus.data(), minus.data());
  }

  Guarded<float> r;
  Guarded<std::uint8_t> plus, minus;
  ThresholdTally tally;
};

void expect_same(const ThresholdArrays& a, const ThresholdArrays& b) {
  ASSERT_EQ(a.tally.sent, b.tally.sent);
  ASSERT_EQ(a.tally.largest, b.tally.largest);
  ASSERT_EQ(a.tally.finite, b.tally.finite);
  ASSERT_TRUE(same_bits(a.r.view(), b.r.view()));
  ASSERT_TRUE(same_bits(a.plus.view(), b.plus.view()));
  ASSERT_TRUE(same_bits(a.minus.view(), b.minus.view()));
  ASSERT_TRUE(a.r.intact() && a.plus.intact() && a.minus.intact());
}

TEST_P(Threshold, FastEqualsReference) {
  for_all_shapes([](Content content, std::size_t size, std::size_t offset) {
    Guarded<float> g(make_content(content, 1, size), offset);
    const auto plain = content >= Content::nan_first ? Content::normal : content;
    const auto r = make_content(plain, 2, size);
    for (const float tau : {0.5f, 2.5f, 1e-40f, 3e38f}) {
      for (const bool with_r : {false, true}) {
        ThresholdArrays fast(r, offset), slow(r, offset);
        fast.run(threshold_pass, tau, g.data(), with_r);
        slow.run(threshold_pass_reference, tau, g.data(), with_r);
        ASSERT_NO_FATAL_FAILURE(expect_same(fast, slow)) << tau;
      }
    }
    ASSERT_TRUE(g.intact());
  });
}

TEST(ThresholdMeaning, ByHand) {
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> g = {1, 2, -2, -3, 7, nan, -0.0f};
  std::vector<float> r = {0.5f, 0, 0, -4, 1, 5, -0.0f};  // x = 1.5, 2, -2, -7, 8, NaN, -0
  std::uint8_t plus = 0xff, minus = 0xff;
  const ThresholdTally tally = threshold_pass_reference(2, g.data(), r.data(), 7, &plus, &minus);
  EXPECT_EQ(plus, 0b0010010);
  EXPECT_EQ(minus, 0b0001100);
  EXPECT_EQ(r, (std::vector<float>{1.5f, 0, 0, -5, 6, 5, 0}));  // one quantum, however far
  EXPECT_EQ(tally.sent, 4u);
  EXPECT_EQ(tally.largest, 6);
  EXPECT_FALSE(tally.finite);
}

}  // namespace
}  // namespace thinwire
