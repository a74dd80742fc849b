// int8_test.cc: blocks of bytes: one result on every vector width, and the definition.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/int8.h"

#include "tests/kernels/quantiser_testing.h"

namespace thinwire {
namespace {

class Int8 : public EachTarget {};
THINWIRE_EACH_TARGET(Int8);

TEST_P(Int8, FastEqualsReference) {
  for (const Int8Rule rule : {Int8Rule{64, false}, Int8Rule{256, true}, Int8Rule{1024, false}}) {
    expect_fast_equals_reference<Int8Rule, int8_encode, int8_encode_reference, int8_add,
                                 int8_add_reference>(rule, int8_bytes);
  }
}

TEST(Int8Value, IsTheDefinition) {
  const std::vector<float> x = {-1, 1.55f, 0, 0.25f, -0.993f};
  std::vector<std::uint8_t> out(int8_bytes({}, x.size()));
  ASSERT_TRUE(int8_encode({}, x.data(), nullptr, x.size(), {}, 0, out.data()));
  const std::vector<std::uint8_t> codes(out.begin() + 8, out.end());
  EXPECT_EQ(codes, (std::vector<std::uint8_t>{0, 255, 100, 125, 1}));
  std::vector<float> back(x.size());
  ASSERT_TRUE(int8_add({}, out.data(), back.size(), 1, back.data()));
  for (std::size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(back[i], x[i], 0.005001);
  EXPECT_EQ(back[0], -1);
}

TEST(Int8Value, ErrorIsHalfAStepOrAWholeOneAtRandom) {
  for (const bool random : {false, true}) {
    const Int8Rule rule{256, random};
    const auto x = make_content(Content::normal, 1, 5000);
    std::vector<std::uint8_t> out(int8_bytes(rule, x.size()));
    std::vector<float> v(x.size());
    ASSERT_TRUE(int8_encode(rule, x.data(), v.data(), x.size(), draw_key(1), 0, out.data()));
    for (std::size_t i = 0; i < x.size(); ++i) {
      float step;
      std::memcpy(&step, out.data() + i / 256 * 264 + 4, 4);
      ASSERT_LE(std::abs(v[i]), (random ? 1.0001f : 0.5001f) * step);
    }
  }
}

TEST(Int8Value, BlocksOfOneValueAreExact) {
  for (const float value : {0.0f, -0.0f, 3.3f, -1e25f, 1e-44f}) {
    const std::vector<float> x(100, value);
    std::vector<float> v(100), back(100);
    std::vector<std::uint8_t> out(int8_bytes({}, 100));
    ASSERT_TRUE(int8_encode({}, x.data(), v.data(), 100, {}, 0, out.data()));
    ASSERT_TRUE(int8_add({}, out.data(), 100, 1, back.data()));
    EXPECT_EQ(back, x);
    EXPECT_EQ(v, std::vector<float>(100));
  }
}

TEST(Int8Value, RefusesWhatNoEncoderWrites) {
  std::vector<std::uint8_t> block(int8_bytes({}, 3));
  float target[3] = {};
  const auto accepts = [&](float lo, float step) {
    std::memcpy(block.data(), &lo, 4);
    std::memcpy(block.data() + 4, &step, 4);
    return int8_add({}, block.data(), 3, 1, target);
  };
  constexpr float inf = std::numeric_limits<float>::infinity();
  EXPECT_TRUE(accepts(0, 0));
  EXPECT_TRUE(accepts(-1, 1));
  EXPECT_FALSE(accepts(0, -1));
  EXPECT_FALSE(accepts(0, 1e-40f));
  EXPECT_FALSE(accepts(inf, 0));
  EXPECT_FALSE(accepts(0, std::nanf("")));
  EXPECT_FALSE(accepts(std::nanf(""), 1));
  EXPECT_FALSE(accepts(0, 1e37f));
}

}  // namespace
}  // namespace thinwire
