// agreement_test.cc: what ranks must agree on, before the first step and after the last; empty
// steps; servers; and the counts of a report.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/exchange/agreement.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "tests/laws.h"
#include "thinwire/exchange/replicas.h"

namespace thinwire {
namespace {

using namespace testing;

// The error on rank 0 when rank 1 of three has other buckets or settings.
std::string disagreement(const std::vector<Bucket>& usual, const std::vector<Bucket>& odd,
                         const std::string& settings = "s", const std::string& other = "s") {
  std::string text;
  run_local(3, [&](Group& group) {
    const bool is_odd = group.rank() == 1;
    const std::string found =
        error_of([&] { check_agreement(group, is_odd ? odd : usual, is_odd ? other : settings); });
    if (group.rank() == 0) text = found;
  });
  return text;
}

TEST(Agreement, EveryDifferenceIsNamed) {
  const std::vector<Bucket> usual = {Bucket{0, {{"a", 0, 6, {2, 3}}, {"b", 6, 4, {}}}}};
  EXPECT_EQ(disagreement(usual, usual), "");
  const std::vector<Bucket> others[] = {
      {Bucket{0, {{"a", 0, 6, {3, 2}}, {"b", 6, 4, {}}}}},
      {Bucket{0, {{"a", 0, 6, {}}, {"b", 6, 4, {}}}}},
      {Bucket{0, {{"b", 0, 6, {2, 3}}, {"a", 6, 4, {}}}}},
      {Bucket{0, {{"a", 0, 5, {}}, {"b", 5, 5, {}}}}},
      {Bucket{0, {{"a", 0, 6, {2, 3}}}}, Bucket{1, {{"b", 0, 4, {}}}}},
  };
  for (const auto& odd : others) {
    const std::string text = disagreement(usual, odd);
    EXPECT_NE(text.find("rank 0: rank 1 was set up otherwise than rank 0"), std::string::npos)
        << text;
    EXPECT_NE(text.find("rank 0 has: 1 buckets, 10 elements, scheme s; rank 1 has:"),
              std::string::npos)
        << text;
  }
  EXPECT_NE(
      disagreement(usual, usual, "s", "t").find("rank 1 has: 1 buckets, 10 elements, scheme t"),
      std::string::npos);
  // The part that does not fit into the summary still counts.
  const std::string lengthy(5000, 'x');
  EXPECT_EQ(disagreement(usual, usual, lengthy, lengthy), "");
  EXPECT_NE(disagreement(usual, usual, lengthy + "1", lengthy + "2").find("the same in sum"),
            std::string::npos);
}

TEST(Replicas, TheFirstDifferenceIsNamed) {
  run_local(3, [](Group& group) {
    std::vector<float> a(5, 1.0f), b(7, 2.0f), c(1, 3.0f);
    const std::vector<Replica> replicas = {{"a", std::as_bytes(std::span(a))},
                                           {"b", std::as_bytes(std::span(b))},
                                           {"c", std::as_bytes(std::span(c))}};
    EXPECT_EQ(error_of([&] { check_replicas(group, replicas); }), "");
    EXPECT_EQ(error_of([&] { check_replicas(group, {}); }), "");
    if (group.rank() == 2) b[6] = 2.5f;
    if (group.rank() == 1) c[0] = 3.5f;
    const std::string text = error_of([&] { check_replicas(group, replicas); });
    EXPECT_NE(text.find("parameter 'b' of rank 2 is not that of rank 0"), std::string::npos)
        << text;
  });
}

TEST(Exchange, StepsOfNothingCountToo) {
  run_local(2, [](Group& group) {
    Exchange exchange(group, std::vector<Bucket>{}, Config::parse("dgc"));
    for (std::uint64_t step = 0; step < 4; ++step) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));  // its thread has nothing to do
      const StepResult result = exchange.finish();
      EXPECT_EQ(result.step, step);
      EXPECT_FALSE(result.skipped);
    }
  });
}

TEST(Exchange, BucketsAndConfigurationsMustMatch) {
  run_local(1, [](Group& group) {
    const std::vector<Bucket> two = {Bucket::single(0, "a", 4), Bucket::single(1, "b", 4)};
    const std::vector<Bucket> gap = {Bucket::single(0, "a", 4), Bucket::single(2, "b", 4)};
    const std::vector<Config> one = {Config::parse("dense")};
    EXPECT_NE(error_of([&] {
                Exchange exchange(group, two, one);
              }).find("a configuration per bucket (2), got 1"),
              std::string::npos);
    EXPECT_NE(
        error_of([&] { Exchange exchange(group, gap, one[0]); }).find("got number 2 at place 1"),
        std::string::npos);
    std::vector<std::unique_ptr<Compressor>> compressors;
    compressors.push_back(make_compressor(one[0], two[0], {0, 1}));
    EXPECT_NE(error_of([&] {
                Exchange exchange(group, two, std::move(compressors), "x");
              }).find("a compressor per bucket (2), got 1"),
              std::string::npos);
  });
}

// A server that only serves takes part in the workers' steps, including skipped ones. Another
// server may read the averages itself.
TEST(Exchange, ServersServe) {
  const std::vector<Bucket> buckets = {Bucket::single(0, "a", 300), Bucket::single(1, "b", 20)};
  run_local(4, [&](Group& group) {
    const ExchangeKind kind = ExchangeKind::parse("server:2");
    Exchange exchange(group, buckets, Config::parse("topk:density=0.5,values=f32"), {.kind = kind});
    for (std::uint64_t step = 0; step < 4; ++step) {
      Model model = model_gradient(buckets, Shape::normal, seed_of(group, step));
      if (step == 2 && group.rank() == 1) model[0][7] = std::numeric_limits<float>::quiet_NaN();
      if (group.rank() == 2)  // a server: memory for the average, with any content
        std::ranges::fill(model[0], std::numeric_limits<float>::quiet_NaN());
      const StepResult result =
          group.rank() == 3 ? exchange.serve() : take_step(exchange, model, 0);
      EXPECT_EQ(result.step, step);
      EXPECT_EQ(result.skipped, step == 2);
    }
    const Report report = exchange.report();
    EXPECT_EQ(report.steps, 4u);
    EXPECT_EQ(report.skipped, 1u);
    EXPECT_EQ(report.dense_bytes, group.rank() < 2 ? 4u * 320 * 4 : 0);
  });
}

TEST(Exchange, ReportTellsTimesAndRatio) {
  run_local(2, [](Group& group) {
    const std::vector<Bucket> buckets = {Bucket::single(0, "w", 100000)};
    Exchange exchange(group, buckets, Config::parse("bf16"));
    EXPECT_EQ(exchange.report().ratio(), 0);
    for (std::uint64_t step = 0; step < 3; ++step) {
      Model model = model_gradient(buckets, Shape::normal, seed_of(group, step));
      take_step(exchange, model, 0);
    }
    const Report report = exchange.report();
    EXPECT_EQ(report.ratio(), 2);
    EXPECT_EQ(report.traffic.collectives, 3u);
    for (const double seconds :
         {report.encode_seconds, report.wait_seconds, report.decode_seconds}) {
      EXPECT_GT(seconds, 0);
      EXPECT_LT(seconds, 60);
    }
  });
}

}  // namespace
}  // namespace thinwire
