// levels_test.cc: levels above the top of a quantiser, which other settings would write, are
// refused.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tests/gradients.h"
#include "thinwire/compress/registry.h"

namespace thinwire::levels {

using namespace testing;

// What a decoder with `bits` says of a frame that was coded with others.
static Code answer(const char* encoder, const char* decoder) {
  const Bucket bucket = Bucket::single(0, "w", 64);
  const auto from = make_compressor(Config::parse(encoder), bucket, {0, 1});
  const auto to = make_compressor(Config::parse(decoder), bucket, {0, 1});
  std::vector<float> g(64, 0.01f), average(64);
  g[5] = 4;  // the top level, whatever is drawn
  std::vector<std::byte> frame(from->leg(0, 0).bytes);
  const std::size_t sizes[] = {from->encode({}, g, frame)};
  return to->decode({}, {frame, frame.size(), sizes}, average).code;
}

TEST(Qsgd, LevelsAboveTheTopAreRefused) {
  EXPECT_EQ(answer("qsgd:bits=3,form=coded", "qsgd:bits=3,form=coded"), Code::ok);
  EXPECT_EQ(answer("qsgd:bits=3,form=coded", "qsgd:bits=2,form=coded"), Code::bad_value);
  EXPECT_EQ(answer("qsgd:bits=2,form=coded", "qsgd:bits=1,form=coded"), Code::bad_value);
}

}  // namespace thinwire::levels
