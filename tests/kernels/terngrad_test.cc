// terngrad_test.cc: random signs: one result on every vector width, the paper's moments, packing.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/terngrad.h"

#include "tests/kernels/kernel_testing.h"
#include "thinwire/kernels/norm.h"

namespace thinwire {
namespace {

class TernGrad : public EachTarget {};
THINWIRE_EACH_TARGET(TernGrad);

TEST_P(TernGrad, FastEqualsReference) {
  for_all_shapes([](Content content, std::size_t size, std::size_t offset) {
    Guarded<float> x(make_content(content, 1, size), offset);
    const LayerStatistics fast = layer_statistics(x.data(), size);
    const LayerStatistics slow = layer_statistics_reference(x.data(), size);
    ASSERT_EQ(fast.finite, slow.finite);
    ASSERT_EQ(slow.finite, content < Content::nan_first || size == 0);
    if (!slow.finite) return;
    ASSERT_EQ(fast.squares, slow.squares);
    ASSERT_EQ(fast.largest, slow.largest);
    for (const float clip : {0.7f * slow.largest, std::numeric_limits<float>::infinity()}) {
      const std::vector<std::int8_t> blank(size);
      Guarded<std::int8_t> a(blank, offset), b(blank, offset);
      terngrad_quantise(x.data(), size, slow.largest, clip, draw_key(4), 7, a.data());
      terngrad_quantise_reference(x.data(), size, slow.largest, clip, draw_key(4), 7, b.data());
      ASSERT_TRUE(same_bits(a.view(), b.view()) && a.intact());
    }
  });
}

std::vector<std::int8_t> random_values(std::size_t count) {
  std::vector<std::int8_t> values(count);
  for (std::size_t i = 0; i < count; ++i)
    values[i] = static_cast<std::int8_t>(static_cast<int>(random_below(count, i, 3)) - 1);
  return values;
}

TEST_P(TernGrad, PacksAndAddsEveryLength) {
  for (std::size_t count = 0; count < 1000; count += count < 20 ? 1 : 13) {
    const auto values = random_values(count);
    const std::vector<std::uint8_t> blank((count + 4) / 5);
    Guarded<std::uint8_t> fast(blank, count % 4), slow(blank, count % 4);
    terngrad_pack(values.data(), count, fast.data());
    terngrad_pack_reference(values.data(), count, slow.data());
    ASSERT_TRUE(same_bits(fast.view(), slow.view()) && fast.intact());
    const std::vector<std::int16_t> start(count, 100);
    Guarded<std::int16_t> a(start, count % 4), b(start, count % 4);
    ASSERT_TRUE(terngrad_add(fast.data(), count, a.data()));
    ASSERT_TRUE(terngrad_add_reference(fast.data(), count, b.data()));
    ASSERT_TRUE(same_bits(a.view(), b.view()) && a.intact());
    for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(a.view()[i], 100 + values[i]);
  }
}

TEST_P(TernGrad, EncodesAsItQuantisesAndPacks) {
  for (const std::size_t count : {0u, 320u, 3200u}) {
    for (const Content content : {Content::normal, Content::zeros, Content::heavy}) {
      Guarded<float> x(make_content(content, 5, count), count % 3);
      const LayerStatistics found = layer_statistics(x.data(), count);
      for (const float clip : {found.largest, 0.3f * found.largest}) {
        const std::vector<std::uint8_t> blank(count / 5);
        Guarded<std::uint8_t> fast(blank, 1), slow(blank, 1);
        terngrad_encode(x.data(), count, found.largest, clip, draw_key(4), 640, fast.data());
        terngrad_encode_reference(x.data(), count, found.largest, clip, draw_key(4), 640,
                                  slow.data());
        ASSERT_TRUE(same_bits(fast.view(), slow.view()) && fast.intact());
        std::vector<std::int8_t> values(count);
        terngrad_quantise(x.data(), count, found.largest, clip, draw_key(4), 640, values.data());
        terngrad_pack(values.data(), count, slow.data());
        ASSERT_TRUE(same_bits(fast.view(), slow.view()));
      }
    }
  }
}

TEST_P(TernGrad, RefusesWhatIsNotFiveValues) {
  std::vector<std::uint8_t> bytes(65);
  std::vector<std::int16_t> sums(323);
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    bytes[at] = at < 64 ? 242 : 26;  // three values at the end: two digits must be zero
    EXPECT_TRUE(terngrad_add(bytes.data(), 323, sums.data())) << at;
    bytes[at] = at < 64 ? 243 : 27;
    EXPECT_FALSE(terngrad_add(bytes.data(), 323, sums.data())) << at;
    bytes[at] = 0;
  }
}

// docs/wire_format.md works this example.
TEST(TernGradValue, Example) {
  const std::int8_t values[] = {1, -1, 0, 1, 1, 0, -1};
  std::uint8_t out[2];
  terngrad_pack(values, 7, out);
  EXPECT_EQ(out[0], 64);
  EXPECT_EQ(out[1], 5);
}

// Sent with probability |x| / s: mean x, variance s |x| - x^2.
TEST(TernGradMoments, AreThePapers) {
  constexpr std::size_t draws = 1u << 16;
  std::vector<std::int8_t> out(draws);
  for (const float x : {0.0f, 1e-3f, -0.3f, 0.75f, -2.0f}) {
    const std::vector<float> same(draws, x);
    terngrad_quantise(same.data(), draws, 2.0f, std::numeric_limits<float>::infinity(), draw_key(8),
                      0, out.data());
    double sum = 0, squares = 0;
    for (const std::int8_t value : out) {
      sum += 2.0 * value;
      squares += 4.0 * value * value;
    }
    const double variance = 2.0 * std::abs(x) - double{x} * x;
    EXPECT_NEAR(sum / draws, x, 5 * std::sqrt(variance / draws)) << x;
    EXPECT_NEAR(squares / draws - std::pow(sum / draws, 2), variance,
                6 * std::sqrt(4 * std::abs(x) / draws) + 1e-12)
        << x;
  }
}

// Clipped magnitudes count as the bound. Without a scale there are no signs. The largest
// is always sent.
TEST(TernGradValue, Edges) {
  const std::vector<float> x(1000, -5.0f);
  std::vector<std::int8_t> out(1000);
  terngrad_quantise(x.data(), 1000, 5, 5, draw_key(1), 0, out.data());
  EXPECT_EQ(out, std::vector<std::int8_t>(1000, -1));
  terngrad_quantise(x.data(), 1000, 4, 1, draw_key(1), 0, out.data());
  const auto sent = std::count(out.begin(), out.end(), -1);
  EXPECT_NEAR(static_cast<double>(sent), 250, 70);
  const std::vector<float> zeros(1000);
  terngrad_quantise(zeros.data(), 1000, 0, 0, draw_key(1), 0, out.data());
  EXPECT_EQ(out, std::vector<std::int8_t>(1000));
}

}  // namespace
}  // namespace thinwire
