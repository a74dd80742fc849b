// kept_test.cc: what must not get lost or mixed up, for every scheme of the registry: residuals
// during a skipped step, the sender of a frame, and the owner of random numbers.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <limits>

#include "tests/laws.h"

namespace thinwire {
namespace {

using namespace testing;

class Kept : public ::testing::TestWithParam<Config> {};

// What each rank keeps, by parameter, without momentum.
std::map<std::string, std::vector<float>> residuals(Exchange& exchange) {
  std::map<std::string, std::vector<float>> kept;
  for (const auto& [name, entry] : state_of(exchange)) {
    if (name.ends_with("/v")) kept[name] = entry.values;
  }
  return kept;
}

// Law: a skipped step keeps the residual. The bad rank's gradient is partly NaN and zero elsewhere,
// and the others' gradients are zero, so that nothing else can be in memory.
void law_waiting(Group& group, Config config, const ExchangeKind& kind) {
  if (!keeps_residual(config)) return;
  config = with(with(config, "momentum", "0"), "clip", "0");
  const auto buckets = awkward_buckets();
  const int workers = kind.workers(group.size());
  Exchange exchange(group, buckets, config, {.kind = kind});
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (std::uint64_t step = 0; step < 4; ++step) {
    Model model = model_gradient(buckets, Shape::normal, seed_of(group, step));
    // The last step is skipped too, so that parameters that are always sent in full also
    // have a residual.
    if (step == 3 && group.rank() == workers - 1) model[1][5] = nan;
    ASSERT_EQ(take_step(exchange, model, 0).skipped, step == 3);
  }
  const auto before = residuals(exchange);
  for (std::size_t every : {1u, 2u, 7u, 3000u}) {
    Model model = model_gradient(buckets, Shape::zero, 0);
    if (group.rank() == 0) {
      for (std::size_t i = 0; i < model[1].size(); i += every) model[1][i] = nan;
    }
    ASSERT_TRUE(take_step(exchange, model, 0).skipped);
    const auto after = residuals(exchange);
    ASSERT_EQ(before.size(), after.size());
    for (const auto& [name, values] : before) {
      for (std::size_t i = 0; i < values.size(); ++i) {
        ASSERT_NEAR(after.at(name)[i], values[i], 1e-4 * (1 + std::abs(values[i])))
            << config.str() << ", rank " << group.rank() << ", " << name << " " << i;
      }
    }
  }
}

TEST_P(Kept, WhatWaitedSurvivesAPartlyBadGradient) {
  for (const int ranks : {1, 3})
    run_local(ranks, [&](Group& group) { law_waiting(group, GetParam(), {}); });
}

// The mean square error of an average of equal gradients, over some steps.
double error_among(int ranks, const Config& config) {
  const std::vector<Bucket> buckets = {Bucket{0, {{"a", 0, 600, {20, 30}}, {"b", 600, 41, {}}}}};
  const Model truth = model_gradient(buckets, Shape::normal, 3);
  double squares = 0;
  run_local(ranks, [&](Group& group) {
    Exchange exchange(group, buckets, config);
    for (int step = 0; step < 100; ++step) {
      Model model = truth;
      take_step(exchange, model, 0);
      for (std::size_t i = 0; group.rank() == 0 && i < model[0].size(); ++i)
        squares += std::pow(model[0][i] - truth[0][i], 2);
    }
  });
  return squares;
}

// Law: each rank draws independently, so four ranks have a quarter of the variance of one. If the
// ranks' values are summed (randomk), they draw the same on purpose.
TEST_P(Kept, RanksDrawEachForItself) {
  const Config& config = GetParam();
  if (!right_on_average(config) || keeps_residual(config)) return;
  if (find_scheme(config.scheme).reducible) return;
  const double alone = error_among(1, config), together = error_among(4, config);
  EXPECT_GT(alone, 0);
  EXPECT_NEAR(together / alone, 0.25, 0.08);
}

// A worker's last round of a step if that is gathered, otherwise nothing. If `frame` is given, it
// is received in place of the worker's own, and `status` is the decoder's result.
std::vector<std::byte> last_round(const Config& config, const Bucket& bucket, std::uint64_t step,
                                  const std::vector<std::byte>* frame, Status& status,
                                  int& culprit) {
  const auto compressor = make_compressor(config, bucket, {0, 1});
  auto g = gradient(Shape::normal, bucket.elements(), 9);
  std::vector<std::byte> out;
  for (int round = 0; round < compressor->rounds(); ++round) {
    const Leg leg = compressor->leg(step, round);
    const bool last = round + 1 == compressor->rounds();
    if (last && leg.reduction != Reduction::gather) return {};
    out.assign(leg.bytes, std::byte{0});
    const Turn turn{step, round, {}, 0};
    out.resize(compressor->encode(turn, std::span(g), out));
    const auto& received = last && frame ? *frame : out;
    const std::size_t sizes[] = {received.size()};
    const Inbox inbox{received, received.size(), sizes};
    status = compressor->decode(turn, inbox, std::span(g));
    culprit = inbox.culprit;
  }
  return out;
}

// Law: a valid frame of another bucket, step or scheme is rejected, and its sender is named.
TEST_P(Kept, FramesOfOthersAreRefused) {
  const Config& config = GetParam();
  const Bucket bucket = Bucket::single(3, "w", 640), other = Bucket::single(4, "w", 640);
  const std::uint64_t step = 70;
  Status status;
  int culprit = -1;
  const auto own = last_round(config, bucket, step, nullptr, status, culprit);
  if (own.empty()) return;
  const auto refused = [&](const Config& from, const Bucket& of, std::uint64_t at) {
    const auto frame = last_round(from, of, at, nullptr, status, culprit);
    last_round(config, bucket, step, &frame, status, culprit);
    return !status.ok() && status.code != Code::skipped && culprit == 0;
  };
  EXPECT_FALSE(refused(config, bucket, step));
  EXPECT_EQ(culprit, -1);
  EXPECT_TRUE(refused(config, bucket, step + 1));
  EXPECT_EQ(status.code, Code::mismatch);
  EXPECT_TRUE(refused(config, bucket, step - 1));
  EXPECT_TRUE(refused(config, other, step));
  EXPECT_EQ(status.code, Code::mismatch);
  EXPECT_TRUE(refused(config, Bucket::single(3, "w", 648), step));
  for (const Scheme* scheme : schemes()) {
    // Another test may have registered a topk under its own name.
    if (scheme->name == config.scheme || scheme->id > 127) continue;
    const Config from{scheme->name, {}};
    if (!last_round(from, bucket, step, nullptr, status, culprit).empty()) {
      EXPECT_TRUE(refused(from, bucket, step)) << from.str();
    }
  }
}

// The same when only the scheme on the wire differs: dgc and topk frames look the same.
TEST(Frames, OfAnotherSchemeAreRefused) {
  Status status;
  int culprit = -1;
  const Bucket bucket = Bucket::single(3, "w", 640);
  const auto frame =
      last_round(Config::parse("topk:density=0.1"), bucket, 0, nullptr, status, culprit);
  last_round(Config::parse("dgc:density=0.1"), bucket, 0, &frame, status, culprit);
  EXPECT_EQ(status.code, Code::mismatch);
  EXPECT_EQ(culprit, 0);
}

// Sends the largest elements of the gradient itself, and keeps no residual.
TEST(Topk, WithoutFeedbackKeepsNothing) {
  const std::vector<Bucket> buckets = {Bucket::single(0, "w", 1000)};
  run_local(2, [&](Group& group) {
    Exchange exchange(group, buckets,
                      Config::parse("topk:feedback=off,density=0.002,values=f32,select=exact"));
    for (std::uint64_t step = 0; step < 5; ++step) {
      Model model = model_gradient(buckets, Shape::normal, seed_of(group, step));
      model[0][123] = -50;
      model[0][900] = 60;
      const bool bad = step == 2 && group.rank() == 1;
      if (bad) model[0][7] = std::numeric_limits<float>::quiet_NaN();
      ASSERT_EQ(take_step(exchange, model, 0).skipped, step == 2);
      for (std::size_t i = 0; step != 2 && i < 1000; ++i)
        ASSERT_EQ(model[0][i], i == 123 ? -50 : i == 900 ? 60 : 0) << step << " " << i;
      EXPECT_EQ(state_of(exchange).count("w/v"), 0u);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Registry, Kept, ::testing::ValuesIn(law_configs()), config_name);

}  // namespace
}  // namespace thinwire
