// golden_test.cc: frames of schemes that send signs, as docs/wire_format.md shows them.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "tests/wire/support.h"
#include "thinwire/compress/registry.h"

namespace thinwire {
namespace {

std::string read_text(const std::string& path) {
  std::ifstream file(std::string(THINWIRE_SOURCE_DIR "/") + path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// The frame of bucket 5 in step 100, a single parameter.
std::string frame_of(const std::string& config, std::vector<float> gradient) {
  const auto compressor =
      make_compressor(Config::parse(config), Bucket::single(5, "w", gradient.size()), {0, 1});
  std::vector<std::byte> out(compressor->leg(100, 0).bytes);
  const std::size_t size = compressor->encode({100, 0, {}, 0}, std::span(gradient), out);
  return to_hex(ConstBytes(out).first(size));
}

// The blocks of the document are these files; tests/wire compares them.
TEST(GoldenSigns, EncodersWriteThem) {
  const std::vector<float> g = {1, -2, 0, 3, -4, 0.5f, 0.25f, -0.75f, 1.25f, 2, -1};
  EXPECT_EQ(frame_of("onebit", g), read_text("tests/wire/golden/onebit.hex"));
  EXPECT_EQ(frame_of("signum", g), read_text("tests/wire/golden/signum.hex"));
  EXPECT_EQ(frame_of("threshold:tau=2", g), read_text("tests/wire/golden/threshold.hex"));
}

}  // namespace
}  // namespace thinwire
