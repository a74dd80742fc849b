// atomo_test.cc: probabilities, bytes and bad bytes of atomo. That it is right on average is a law
// of all such schemes.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/compress/atomo.h"

#include <numeric>

#include "tests/laws.h"

namespace thinwire {
namespace {

using namespace testing;

TEST(AtomoChances, AreThePapers) {
  const double strengths[] = {8, 1, 1};
  EXPECT_EQ(atomo_chances(strengths, 1), (std::vector<double>{0.8, 0.1, 0.1}));
  EXPECT_EQ(atomo_chances(strengths, 2), (std::vector<double>{1, 0.5, 0.5}));
  EXPECT_EQ(atomo_chances(strengths, 3), (std::vector<double>{1, 1, 1}));
  EXPECT_EQ(atomo_chances(strengths, 9), (std::vector<double>{1, 1, 1}));
  const double small[] = {8e-9, 1e-9, 1e-9};
  const auto of_small = atomo_chances(small, 2);
  EXPECT_EQ(of_small[0], 1);
  EXPECT_NEAR(of_small[1], 0.5, 1e-12);
  const double zeros[] = {0, 0};
  EXPECT_EQ(atomo_chances(zeros, 2), (std::vector<double>{0, 0}));
}

TEST(AtomoChances, AddUpToTheBudget) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    std::vector<double> strengths;
    for (const float x : gradient(Shape::heavy, 20, seed)) strengths.push_back(std::abs(x));
    std::sort(strengths.rbegin(), strengths.rend());
    for (const double budget : {0.3, 1.0, 2.5, 7.0, 20.0}) {
      const auto chances = atomo_chances(strengths, budget);
      EXPECT_NEAR(std::accumulate(chances.begin(), chances.end(), 0.0), budget, 1e-9);
      EXPECT_TRUE(std::is_sorted(chances.rbegin(), chances.rend()));
      EXPECT_LE(chances.front(), 1.0);
    }
  }
}

const Bucket small{0, {{"w", 0, 16, {4, 4}}, {"b", 16, 1, {}}}};

std::vector<std::byte> encode(Codec& codec, std::span<const float> x) {
  std::vector<std::byte> out(codec.payload_bytes());
  const Coded coded = codec.encode(x, {}, 1, out);
  EXPECT_TRUE(coded.finite);
  out.resize(coded.bytes);
  return out;
}

// The example of docs/wire_format.md.
TEST(Atomo, KnownBytes) {
  std::vector<float> x(17);
  x[1] = 2;  // row 0, column 1
  x[16] = 0.5f;
  const auto codec = make_atomo_codec(1, small);
  const auto bytes = encode(*codec, x);
  std::vector<float> expected(10);  // 2, u = (1, 0, 0, 0), v = (0, 1, 0, 0), 0.5
  expected[0] = 2;
  expected[1] = 1;
  expected[6] = 1;
  expected[9] = 0.5f;
  std::vector<std::byte> known = {std::byte{1}, std::byte{0}, std::byte{0}, std::byte{0}};
  const auto floats = std::as_bytes(std::span(expected));
  known.insert(known.end(), floats.begin(), floats.end());
  EXPECT_EQ(bytes, known);
  std::vector<float> back(17);
  ASSERT_TRUE(codec->add(bytes, 1, back).ok());
  EXPECT_TRUE(same_bits(back, x));
}

// With more triplets than are worthwhile, their sum is sent.
TEST(Atomo, WholeWhereThatIsSmaller) {
  const auto x = gradient(Shape::normal, 17, 3);
  const auto codec = make_atomo_codec(4, small);
  const auto bytes = encode(*codec, x);
  EXPECT_EQ(bytes.size(), 4 + 17 * 4u);
  EXPECT_EQ(bytes.size(), codec->payload_bytes());
  std::vector<float> back(17);
  ASSERT_TRUE(codec->add(bytes, 1, back).ok());
  for (std::size_t i = 0; i < 17; ++i) EXPECT_NEAR(back[i], x[i], 1e-5);
}

TEST(Atomo, BadBytesAreRefused) {
  std::vector<float> x(17), target(17);
  x[1] = 2;
  const auto codec = make_atomo_codec(1, small);
  const auto good = encode(*codec, x);
  for (std::size_t size = 0; size < good.size(); ++size)
    EXPECT_EQ(codec->add(ConstBytes(good).first(size), 1, target).code, Code::truncated) << size;
  auto bad = good;
  bad.push_back(std::byte{0});
  EXPECT_EQ(codec->add(bad, 1, target).code, Code::mismatch);
  bad = good;
  bad[0] = std::byte{2};
  EXPECT_EQ(codec->add(bad, 1, target).code, Code::bad_value);
  bad = good;
  std::fill_n(bad.begin(), 4, std::byte{0xff});
  EXPECT_EQ(codec->add(bad, 1, target).code, Code::truncated);
  bad = good;
  std::fill_n(bad.begin() + 8, 4, std::byte{0xff});
  EXPECT_EQ(codec->add(bad, 1, target).code, Code::bad_value);
}

// Its strength is four times the largest float.
TEST(Atomo, TooLargeForAFloatVoidsTheStep) {
  const std::vector<float> x(17, std::numeric_limits<float>::max());
  const auto codec = make_atomo_codec(1, small);
  std::vector<std::byte> out(codec->payload_bytes());
  const Coded coded = codec->encode(x, {}, 1, out);
  EXPECT_FALSE(coded.finite);
  EXPECT_EQ(coded.bytes, 4 + 4u);
  EXPECT_EQ(out[0], std::byte{0});
}

TEST(Schemes, SayWhyTheyStayOnTheHost) {
  EXPECT_EQ(why_on_host({"atomo", {}}).find("it decomposes every layer"), 0u);
  EXPECT_EQ(why_on_host(Config::parse("qsgd:form=coded")).find("the codes of form=coded"), 0u);
  EXPECT_EQ(why_on_host({"qsgd", {}}), "");
  Site site;
  site.device = {Device::Kind::cuda, 0};
  const std::string error = error_of(
      [&] { make_compressor(Config::parse("qsgd:form=coded"), Bucket::single(0, "w", 64), site); });
  EXPECT_EQ(error.find("scheme 'qsgd:form=coded' does not run on CUDA: the codes"), 0u) << error;
}

// Sends as many triplets as the budget says, on average.
TEST(Atomo, SendsTheBudgetOnAverage) {
  const Bucket bucket{0, {{"w", 0, 20 * 30, {20, 30}}}};
  const auto codec = make_atomo_codec(3, bucket);
  const auto x = gradient(Shape::normal, 600, 7);
  std::vector<std::byte> out(codec->payload_bytes());
  double triplets = 0;
  const int draws = 300;
  for (std::uint64_t seed = 0; seed < draws; ++seed)
    triplets += static_cast<double>(codec->encode(x, {}, seed, out).bytes - 4) / (4 * 51);
  EXPECT_NEAR(triplets / draws, 3, 0.4);
}

}  // namespace
}  // namespace thinwire
