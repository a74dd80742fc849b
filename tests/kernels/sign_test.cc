// sign_test.cc: sign bits, the sums of both sides and their decoded values, on every vector width.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/sign.h"

#include "tests/kernels/kernel_testing.h"

namespace thinwire {
namespace {

class Sign : public EachTarget {};
THINWIRE_EACH_TARGET(Sign);

// r is finite in a real run. Here too, but as extreme as g if g is finite.
std::vector<float> residual_for(Content content, std::size_t size) {
  return make_content(content >= Content::nan_first ? Content::normal : content, 2, size);
}

bool same(double a, double b) {
  return std::isnan(a) ? std::isnan(b)
                       : std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b);
}

TEST_P(Sign, ScanEqualsReference) {
  for_all_shapes([](Content content, std::size_t size, std::size_t offset) {
    Guarded<float> g(make_content(content, 1, size), offset);
    Guarded<float> r(residual_for(content, size), (offset + 1) % 4);
    for (const bool with_r : {false, true}) {
      const float* kept = with_r ? r.data() : nullptr;
      const std::vector<std::uint8_t> room((size + 7) / 8, 0xff);
      Guarded<std::uint8_t> fast(room, offset), slow(room, offset);
      const SignSums a = sign_scan(g.data(), kept, size, fast.data());
      const SignSums b = sign_scan_reference(g.data(), kept, size, slow.data());
      ASSERT_TRUE(same(a.high, b.high) && same(a.low, b.low));
      ASSERT_EQ(a.lows, b.lows);
      ASSERT_TRUE(same_bits(fast.view(), slow.view()));
      ASSERT_TRUE(fast.intact() && slow.intact() && g.intact() && r.intact());
    }
  });
}

TEST_P(Sign, SettleAndAddEqualReference) {
  for_all_shapes([](Content content, std::size_t size, std::size_t offset) {
    if (content >= Content::nan_first) return;  // settle requires finite input
    Guarded<float> g(make_content(content, 1, size), offset);
    Guarded<float> fast(residual_for(content, size), offset), slow(fast.view(), offset);
    sign_settle(g.data(), fast.data(), size, 0.75f, -1.25f);
    sign_settle_reference(g.data(), slow.data(), size, 0.75f, -1.25f);
    ASSERT_TRUE(same_bits(fast.view(), slow.view()));
    std::vector<std::uint8_t> bits((size + 7) / 8);
    for (std::size_t i = 0; i < bits.size(); ++i)
      bits[i] = static_cast<std::uint8_t>(random_at(3, i));
    sign_add(bits.data(), size, 0.3f, -0.7f, fast.data());
    sign_add_reference(bits.data(), size, 0.3f, -0.7f, slow.data());
    ASSERT_TRUE(same_bits(fast.view(), slow.view()));
    ASSERT_TRUE(fast.intact() && slow.intact() && g.intact());
  });
}

TEST_P(Sign, NonFiniteAtEveryPositionShowsInTheSums) {
  constexpr float inf = std::numeric_limits<float>::infinity();
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  std::uint8_t bits[17];
  for (std::size_t at = 0; at < 130; ++at) {
    for (const float bad : {nan, -nan, inf, -inf}) {
      auto g = make_content(Content::normal, 4, 130);
      const auto r = make_content(Content::normal, 5, 130);
      g[at] = bad;
      const SignSums sums = sign_scan(g.data(), r.data(), 130, bits);
      ASSERT_FALSE(std::isfinite(sums.high) && std::isfinite(sums.low)) << at;
    }
  }
}

// By hand: zeros of both signs are on the high side.
TEST(SignMeaning, BitsSumsResidual) {
  const std::vector<float> g = {1, -2, 0, -0.0f, 3, -1, -4, 2, -8};
  std::vector<float> r = {1, 0, 0, -0.0f, -4, 1, 0, 0, 0};
  std::uint8_t bits[2] = {0xff, 0xff};  // x = 2, -2, 0, -0, -1, 0, -4, 2, -8
  const SignSums sums = sign_scan_reference(g.data(), r.data(), 9, bits);
  EXPECT_EQ(sums.high, 4);
  EXPECT_EQ(sums.low, -15);
  EXPECT_EQ(sums.lows, 4u);
  EXPECT_EQ(bits[0], 0b01010010);
  EXPECT_EQ(bits[1], 1);
  sign_settle_reference(g.data(), r.data(), 9, 0.5f, -3);
  EXPECT_EQ(r, (std::vector<float>{1.5f, 1, -0.5f, -0.5f, 2, -0.5f, -1, 1.5f, -5}));
  std::vector<float> target(9, 10);
  sign_add_reference(bits, 9, 0.5f, -3, target.data());
  EXPECT_EQ(target, (std::vector<float>{10.5f, 7, 10.5f, 10.5f, 7, 10.5f, 7, 10.5f, 7}));
}

TEST(SignMeaning, SumsOfTheLargestFloatsStayFinite) {
  const std::vector<float> g(1000, std::numeric_limits<float>::max());
  std::vector<std::uint8_t> bits(125);
  EXPECT_EQ(sign_scan(g.data(), nullptr, g.size(), bits.data()).high,
            1000.0 * static_cast<double>(std::numeric_limits<float>::max()));
}

}  // namespace
}  // namespace thinwire
