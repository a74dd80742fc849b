// half_test.cc: f16 and bf16 against their definition: every bit pattern there and back, rounding
// to nearest with ties to even.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/core/half.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "thinwire/core/random.h"

namespace thinwire {
namespace {

struct Format {
  std::uint16_t (*narrow)(float);
  float (*widen)(std::uint16_t);
  std::uint16_t infinity;
};
constexpr Format f16{to_f16, from_f16, 0x7c00}, bf16{to_bf16, from_bf16, 0x7f80};

class Half : public ::testing::TestWithParam<Format> {};

TEST_P(Half, EveryPatternComesBack) {
  const auto [narrow, widen, infinity] = GetParam();
  for (std::uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    if ((half & 0x7fff) > infinity) {
      EXPECT_TRUE(std::isnan(widen(half)));
      EXPECT_EQ(narrow(widen(half)), infinity == 0x7c00 ? 0x7e00 : 0x7fc0);
    } else {
      ASSERT_EQ(narrow(widen(half)), half) << bits;
    }
  }
}

// Between two neighbours: the nearer one; in the middle: the even one.
TEST_P(Half, RoundsToNearestTiesToEven) {
  const auto [narrow, widen, infinity] = GetParam();
  for (std::uint16_t half = 0; half + 1 < infinity; ++half) {
    const float low = widen(half), high = widen(static_cast<std::uint16_t>(half + 1));
    const float middle = low + (high - low) / 2;  // exact: f32 has more bits than either
    const auto even = static_cast<std::uint16_t>(half + (half & 1));
    ASSERT_EQ(narrow(middle), even) << half;
    ASSERT_EQ(narrow(std::nextafter(middle, low)), half) << half;
    ASSERT_EQ(narrow(std::nextafter(middle, high)), half + 1) << half;
    ASSERT_EQ(narrow(-middle), even | 0x8000) << half;
  }
}

TEST_P(Half, OverflowsToInfinity) {
  const auto [narrow, widen, infinity] = GetParam();
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(narrow(inf), infinity);
  EXPECT_EQ(narrow(-inf), infinity | 0x8000);
  EXPECT_EQ(narrow(std::numeric_limits<float>::max()), infinity);
}

INSTANTIATE_TEST_SUITE_P(Formats, Half, ::testing::Values(f16, bf16));

}  // namespace
}  // namespace thinwire
