// exact_test.cc: rounding at its ties, and headers that are wrong in one field only.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>

#include "tests/wire/support.h"
#include "thinwire/wire/block.h"
#include "thinwire/wire/values.h"

namespace thinwire::exact {

// The mean of signs as it travels: the nearest bf16, which has eight bits; of two, the even one.
static float sent(float value) {
  std::vector<float> values = {value};
  std::vector<std::byte> bytes(value_bytes(ValueCoder::sign, 1));
  value_encode(ValueCoder::sign, values, bytes);
  return values[0];
}

TEST(Values, MeansOfSignsAreRoundedToEven) {
  const float last = 0x1p-7f, half = 0x1p-8f, bit = 0x1p-23f;
  for (const int scale : {-100, -1, 0, 60}) {
    const auto at = [&](float value) { return std::ldexp(sent(std::ldexp(value, scale)), -scale); };
    EXPECT_EQ(at(1), 1);
    EXPECT_EQ(at(1 + half), 1) << scale;
    EXPECT_EQ(at(1 + half + bit), 1 + last) << scale;
    EXPECT_EQ(at(1 + last + half - bit), 1 + last) << scale;
    EXPECT_EQ(at(1 + last + half), 1 + 2 * last) << scale;
    EXPECT_EQ(at(1 + last + half + bit), 1 + 2 * last) << scale;
    EXPECT_EQ(at(2 - half), 2) << scale;
  }
  EXPECT_EQ(sent(0x1p-133f), 0x1p-133f);         // the smallest bf16
  EXPECT_EQ(sent(0x1.8p-133f), 0x1p-132f);       // a tie of subnormals, and
  EXPECT_EQ(sent(0x1.4p-132f), 0x1p-132f);       // one that goes down
  EXPECT_EQ(sent(-0x1.fffp127f), -0x1.fep127f);  // the largest
}

TEST(Block, HasNeitherValueCoderNorChunks) {
  const FrameHeader good{17, false, ValueCoder::f32, 0, 5, 100, 5};
  const auto answer = [&](unsigned layout) {
    std::vector<std::byte> frame(block_header_bytes + 3);
    frame.resize(seal_block(good, 3, frame));
    frame[5] = static_cast<std::byte>(layout);
    repair(frame);
    FrameHeader header;
    ConstBytes payload;
    return open_block(frame, header, payload).code;
  };
  EXPECT_EQ(answer(0), Code::ok);
  EXPECT_EQ(answer(5), Code::bad_value);       // a value coder
  EXPECT_EQ(answer(6 << 3), Code::bad_value);  // chunks
  EXPECT_EQ(answer(1 << 3), Code::bad_value);
}

}  // namespace thinwire::exact
