// terngrad_test.cc: what TernGrad's two rounds promise: one scale for all workers, clipping by
// layer, and the same result for both ways of sending.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "tests/gradients.h"
#include "thinwire/thinwire.h"

namespace thinwire {
namespace {

using testing::gradient;
using testing::same_bits;
using testing::Shape;

std::vector<std::vector<float>> averages(const std::string& config, const Bucket& bucket,
                                         int ranks) {
  std::vector<std::vector<float>> result(static_cast<std::size_t>(ranks));
  run_local(ranks, [&](Group& group) {
    Exchange exchange(group, {bucket}, Config::parse(config));
    const auto rank = static_cast<std::size_t>(group.rank());
    result[rank] = gradient(Shape::normal, bucket.elements(), rank);
    for (float& value : result[rank]) value *= static_cast<float>(rank + 1);
    exchange.submit(0, std::span(result[rank]));
    exchange.finish();
  });
  return result;
}

// The sum of the ranks' signs times the largest magnitude of any rank: a grid of 2 ranks + 1
// values.
TEST(Terngrad, ValuesLieOnOneGrid) {
  const Bucket bucket{0, {{"a", 0, 2000, {}}, {"b", 2000, 41, {}}}};
  const auto result = averages("terngrad:clip=0", bucket, 3);
  float largest = 0;
  for (std::size_t rank = 0; rank < 3; ++rank) {
    const auto g = gradient(Shape::normal, 2041, rank);
    for (const float value : std::span(g).first(2000))
      largest = std::max(largest, std::abs(value) * static_cast<float>(rank + 1));
  }
  std::set<int> seen;
  for (std::size_t i = 0; i < 2000; ++i) {
    const float level = result[0][i] / (largest / 3);
    EXPECT_NEAR(level, std::round(level), 1e-5);
    seen.insert(static_cast<int>(std::round(level)));
  }
  EXPECT_GE(*seen.begin(), -3);
  EXPECT_LE(*seen.rbegin(), 3);
  EXPECT_GE(seen.size(), 3u);
}

TEST(Terngrad, GatherAndSumGiveTheSameBits) {
  const Bucket bucket{0, {{"a", 0, 50000, {}}, {"none", 50000, 0, {}}, {"b", 50000, 777, {}}}};
  const auto gather = averages("terngrad", bucket, 3),
             sum = averages("terngrad:travel=sum", bucket, 3);
  for (std::size_t rank = 0; rank < 3; ++rank) EXPECT_TRUE(same_bits(gather[rank], sum[rank]));
}

// Sigma about zero, per layer: a layer's outlier is clipped to 2.5 of its own sigmas, and a layer
// of one element is not clipped at all.
TEST(Terngrad, ClipsByLayer) {
  const Bucket bucket{0, {{"a", 0, 1000, {}}, {"b", 1000, 1, {}}}};
  run_local(1, [&](Group& group) {
    Exchange exchange(group, {bucket}, Config::parse("terngrad"));
    std::vector<float> g(1001, 0.1f);
    g[7] = -100;
    g[1000] = 5;
    const double sigma = std::sqrt((999 * 0.01 + 10000) / 1000);
    exchange.submit(0, std::span(g));
    exchange.finish();
    EXPECT_NEAR(g[7], -2.5 * sigma, 1e-4);
    EXPECT_EQ(g[1000], 5);
  });
}

TEST(Terngrad, RefusesMoreWorkersThanAByteCounts) {
  const Bucket bucket = Bucket::single(0, "w", 10);
  const auto make = [&](const char* config) {
    return testing::error_of([&] { make_compressor(Config::parse(config), bucket, {0, 128}); });
  };
  EXPECT_EQ(make("terngrad"), "");
  EXPECT_NE(make("terngrad:travel=sum").find("at most 127 workers, got 128"), std::string::npos);
}

}  // namespace
}  // namespace thinwire
