// fit_test.cc: several messages in flight: every scheme either gives the same results as with one
// at a time, or is rejected.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/delay/fit.h"

#include "tests/laws.h"

namespace thinwire {
namespace {

using namespace testing;

const Bucket bucket{0, {{"a", 0, 600, {20, 30}}, {"b", 600, 41, {}}}};

// A step of a single worker: holds its message until it is decoded.
class Step {
 public:
  Step(Compressor& compressor, std::uint64_t number)
      : compressor_(compressor),
        turn_{number, 0, {}, 0},
        leg_(compressor.leg(number, 0)),
        values_(gradient(Shape::normal, bucket.elements(), number)),
        bytes_(leg_.bytes),
        size_(compressor.encode(turn_, std::span(values_), out())) {}

  std::vector<float> decode() {
    const std::size_t sizes[] = {size_};
    EXPECT_TRUE(compressor_.decode(turn_, {out(), leg_.bytes, sizes}, std::span(values_)).ok());
    return values_;
  }

 private:
  Bytes out() { return leg_.in_place ? std::as_writable_bytes(std::span(values_)) : Bytes(bytes_); }

  Compressor& compressor_;
  Turn turn_;
  Leg leg_;
  std::vector<float> values_;
  std::vector<std::byte> bytes_;
  std::size_t size_;
};

TEST(Fit, StepsUnderWayTogetherAreThoseOneByOne) {
  for (const Config& config : law_configs()) {
    const auto make = [&] { return make_compressor(config, bucket, {0, 1}); };
    const auto one_by_one = make(), together = make();
    if (together->in_turn()) {
      EXPECT_NE(error_of([&] { check_turns(config, *together, 2, false); }), "") << config.str();
      continue;
    }
    std::vector<std::vector<float>> expected;
    for (std::uint64_t step = 0; step < 6; ++step)
      expected.push_back(Step(*one_by_one, step).decode());
    for (std::uint64_t step = 0; step < 6; step += 3) {
      Step a(*together, step), b(*together, step + 1), c(*together, step + 2);
      EXPECT_TRUE(same_bits(a.decode(), expected[step])) << config.str();
      EXPECT_TRUE(same_bits(b.decode(), expected[step + 1])) << config.str();
      EXPECT_TRUE(same_bits(c.decode(), expected[step + 2])) << config.str();
    }
  }
}

std::string clash(const char* scheme, std::uint64_t delay, std::uint64_t local_steps) {
  DelayOptions options;
  options.delay = delay;
  options.local_steps = local_steps;
  return error_of([&] { check_fit(options, Config::parse(scheme), false); });
}

TEST(Fit, IsKnownBeforeThereIsAModel) {
  EXPECT_NE(clash("signum", 5, 1).find("vote"), std::string::npos);
  EXPECT_NE(clash("dgc", 5, 1).find("momentum=0"), std::string::npos);
  for (const char* scheme : {"powersgd", "powersgd:rank=256", "terngrad", "csc:momentum=0",
                             "csc:momentum=0,select=previous"}) {
    EXPECT_NE(clash(scheme, 5, 1).find("only one message"), std::string::npos) << scheme;
    EXPECT_NE(clash(scheme, 5, 4).find("only one message"), std::string::npos) << scheme;
    EXPECT_EQ(clash(scheme, 5, 5), "") << scheme;
  }
  for (const char* scheme : {"dense", "topk", "qsgd", "randomk:momentum=0"})
    EXPECT_EQ(clash(scheme, 5, 1), "") << scheme;
}

TEST(Fit, BooksAndMoments) {
  const auto clash = [](const char* correction, const char* scheme, bool moments) {
    DelayOptions options;
    options.parse_correction(correction);
    return error_of([&] { check_fit(options, Config::parse(scheme), moments); });
  };
  EXPECT_NE(clash("soft:book=b", "powersgd", false).find("book=a"), std::string::npos);
  EXPECT_NE(clash("soft:book=b", "qsgd", false).find("residual"), std::string::npos);
  for (const char* scheme : {"int8", "topk", "fp16"})
    EXPECT_NE(clash("soft", scheme, true).find("second moments"), std::string::npos) << scheme;
  EXPECT_EQ(clash("soft", "bf16", true) + clash("soft:book=b", "topk", true), "");
  EXPECT_EQ(clash("soft", "int8", false), "");
  EXPECT_EQ(clash("soft:book=b", "dgc:momentum=0", true), "");
  for (const char* scheme : {"int8", "onebit:memory=residual"})
    EXPECT_NE(clash("soft:book=b", scheme, true).find("second moments"), std::string::npos);
}

}  // namespace
}  // namespace thinwire
