// randomk_test.cc: the random choice: the same on all workers, exactly k elements, evenly
// distributed, right on average.
// SPDX-License-Identifier: Apache-2.0
#include "tests/laws.h"

namespace thinwire {
namespace {

using namespace testing;

// One step of a single worker; the average is what was sent.
std::vector<float> step_of(Compressor& compressor, std::vector<float> g, std::uint64_t step) {
  std::vector<std::byte> out(compressor.leg(step, 0).bytes);
  compressor.encode({step, 0, {}, 0}, std::span(g), out);
  EXPECT_TRUE(compressor.decode({step, 0, {}, 0}, {out, 0, {}}, std::span(g)).ok());
  return g;
}

TEST(Randomk, DrawsAProperSubsetEvenly) {
  for (const std::size_t block : {1u, 3u}) {
    const std::size_t count = 300, wanted = block == 1 ? 30 : 10;
    const auto compressor = make_compressor(
        Config::parse("randomk:density=0.1,memory=none,block=" + std::to_string(block)),
        Bucket::single(0, "w", count), {0, 1});
    const int steps = 6000;
    std::vector<double> hits(count);
    for (int step = 0; step < steps; ++step) {
      const auto sent =
          step_of(*compressor, std::vector<float>(count, 1.0f), static_cast<std::uint64_t>(step));
      std::size_t runs = 0;
      for (std::size_t i = 0; i < count; ++i) {
        if (sent[i] == 0) continue;
        hits[i] += 1;
        if (i % block == 0) ++runs;
      }
      ASSERT_EQ(runs, wanted);
    }
    double squared = 0;
    for (const double n : hits) {
      const double p = 0.1, score = (n / steps - p) / std::sqrt(p * (1 - p) / steps);
      ASSERT_LT(std::abs(score), 6);
      squared += score * score;
    }
    EXPECT_LT(squared / static_cast<double>(count), 1.6);
  }
}

// Strata of ten and eleven: each element must be scaled by the factor of its own stratum.
TEST(Randomk, WithoutMemoryIsRightOnAverage) {
  const std::size_t count = 105;
  const auto g = gradient(Shape::normal, count, 5);
  const auto compressor = make_compressor(Config::parse("randomk:density=0.1,memory=none"),
                                          Bucket::single(0, "w", count), {0, 1});
  const int steps = 20000;
  std::vector<double> sum(count);
  for (int step = 0; step < steps; ++step) {
    const auto sent = step_of(*compressor, g, static_cast<std::uint64_t>(step));
    for (std::size_t i = 0; i < count; ++i) sum[i] += sent[i];
  }
  double squared = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const double error = std::abs(g[i]) * std::sqrt(9.5 / steps);
    const double score = (sum[i] / steps - static_cast<double>(g[i])) / error;
    ASSERT_LT(std::abs(score), 5) << i;
    squared += score * score;
  }
  EXPECT_LT(squared / static_cast<double>(count), 1.6);
}

TEST(Randomk, ChoiceDependsOnSeedStepAndBucketOnly) {
  const auto support = [](const char* seed, std::uint16_t bucket, int rank, std::uint64_t step) {
    const auto compressor = make_compressor(Config::parse(std::string("randomk:seed=") + seed),
                                            Bucket::single(bucket, "w", 4000), {rank, 8});
    return step_of(*compressor, std::vector<float>(4000, 1.0f), step);
  };
  const auto first = support("0", 0, 0, 0);
  EXPECT_EQ(first, support("0", 0, 5, 0));
  EXPECT_NE(first, support("0", 0, 0, 1));
  EXPECT_NE(first, support("0", 1, 0, 0));
  EXPECT_NE(first, support("1", 0, 0, 0));
}

// An element that is not drawn must not hide its NaN.
TEST(Randomk, NonFiniteElementOutsideTheChoiceIsSeen) {
  for (const char* text : {"randomk", "randomk:memory=residual", "randomk:memory=momentum"}) {
    run_local(2, [&](Group& group) {
      Exchange exchange(group, {Bucket::single(0, "w", 1000)}, Config::parse(text));
      for (std::size_t at = 0; at < 40; ++at) {
        std::vector<float> g(1000, 1.0f);
        if (group.rank() == 1) g[at * 25] = std::numeric_limits<float>::quiet_NaN();
        exchange.submit(0, std::span(g));
        ASSERT_TRUE(exchange.finish().skipped);
      }
    });
  }
}

}  // namespace
}  // namespace thinwire
