// qsgd_test.cc: the norm that scales the levels.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>

#include "thinwire/compress/registry.h"

namespace thinwire::qsgd_norms {

// What one worker's bytes decode to, for a gradient of ones.
static std::vector<float> ones_through(const std::string& config) {
  std::vector<float> values(500, 1.0f);
  const auto compressor =
      make_compressor(Config::parse(config), Bucket::single(0, "w", values.size()), {0, 1});
  std::vector<std::byte> bytes(compressor->leg(0, 0).bytes);
  const std::size_t sizes[] = {compressor->encode({}, values, bytes)};
  EXPECT_TRUE(compressor->decode({}, {bytes, bytes.size(), sizes}, values).ok());
  return values;
}

// Relative to the largest magnitude, ones are the highest level, and nothing is random. Relative to
// the length of the vector they are a small fraction, which becomes 0 or much more.
TEST(Qsgd, LevelsAreOfTheNormThatIsNamed) {
  const auto is_one = [](float x) { return x == 1.0f; };
  for (const std::string form : {"packed", "coded"}) {
    const auto of_max = ones_through("qsgd:bits=2,norm=max,form=" + form);
    EXPECT_TRUE(std::ranges::all_of(of_max, is_one)) << form;
    const auto of_l2 = ones_through("qsgd:bits=2,norm=l2,form=" + form);
    EXPECT_TRUE(std::ranges::none_of(of_l2, is_one)) << form;
  }
}

}  // namespace thinwire::qsgd_norms
