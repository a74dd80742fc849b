// text_test.cc: text and numbers, whatever the program's locale.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/core/text.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <locale>

#include "thinwire/core/error.h"

namespace thinwire {
namespace {

struct Commas final : std::numpunct<char> {
  char do_decimal_point() const override { return ','; }
  char do_thousands_sep() const override { return '.'; }
  std::string do_grouping() const override { return "\3"; }
};

// Sets a foreign locale during a test. Streams created meanwhile write 1.234,5.
class Abroad {
 public:
  Abroad() : home_(std::locale::global(std::locale(std::locale(), new Commas))) {}
  Abroad(const Abroad&) = delete;
  Abroad& operator=(const Abroad&) = delete;
  ~Abroad() { std::locale::global(home_); }

 private:
  std::locale home_;
};

TEST(Text, PartsFollowEachOther) {
  const std::string_view view = "view";
  EXPECT_EQ(text_of("a", std::string("b"), view, 'c', 1, std::uint8_t{2}, std::size_t{3}, -4L),
            "abviewc123-4");
  EXPECT_EQ(text_of(true, false), "10");
  EXPECT_EQ(text_of(), "");
  EXPECT_EQ(text_of(std::numeric_limits<std::int64_t>::min()), "-9223372036854775808");
}

TEST(Text, NumbersAreShort) {
  EXPECT_EQ(text_of(3.0, " ", 0.001, " ", 0.1f, " ", 1e30, " ", 1.0 / 3),
            "3 0.001 0.1 1e+30 0.333333");
  EXPECT_EQ(text_of(-std::numeric_limits<double>::infinity()), "-inf");
  EXPECT_EQ(text_of(std::numeric_limits<double>::max()), "1.79769e+308");
}

TEST(Text, NoLocaleMatters) {
  const Abroad abroad;
  EXPECT_EQ(text_of(1234.5, " ", 1234567), "1234.5 1234567");
  try {
    fail("expected ", 0.5, ", got ", 20000);
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "expected 0.5, got 20000");
  }
}

TEST(Text, NumbersAreRead) {
  EXPECT_EQ(number_in("0.5"), 0.5);
  EXPECT_EQ(number_in("-1e-3"), -1e-3);
  EXPECT_EQ(number_in("7"), 7);
  for (const char* wrong : {"", " 1", "1 ", "1x", "0,5", "inf", "nan", "1e999", "x"})
    EXPECT_TRUE(std::isnan(number_in(wrong))) << wrong;
}

}  // namespace
}  // namespace thinwire
