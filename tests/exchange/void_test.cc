// void_test.cc: every scheme and variant under the laws of skipped steps, on the local engine.
// SPDX-License-Identifier: Apache-2.0
#include "tests/void_laws.h"

namespace thinwire {
namespace {

using namespace testing;

std::vector<Config> everywhere(const Config& config) {
  return std::vector<Config>(awkward_buckets().size(), config);
}

class Void : public ::testing::TestWithParam<Config> {};

TEST_P(Void, NothingOfTheStepStays) {
  for (const int ranks : {2, 4})
    run_local(ranks, [&](Group& group) { law_nothing_stays(group, everywhere(GetParam())); });
}

TEST_P(Void, RecoversFromAFiniteOverflow) {
  run_local(2, [&](Group& group) { law_recovers(group, everywhere(GetParam())); });
}

TEST_P(Void, WhatWaitedStays) {
  for (const int ranks : {1, 3})
    run_local(ranks, [&](Group& group) { law_waiting_stays(group, GetParam()); });
}

TEST_P(Void, StripesKeepTheLawsToo) {
  for (const char* text : {"split", "server:1"}) {
    if (sanitized && text != std::string("split")) break;
    const ExchangeKind kind = ExchangeKind::parse(text);
    if (!error_of([&] { check_fit(kind, GetParam()); }).empty()) continue;
    run_local(2 + kind.servers, [&](Group& group) {
      law_nothing_stays(group, everywhere(GetParam()), kind);
      law_recovers(group, everywhere(GetParam()), kind);
      law_waiting_stays(group, GetParam(), kind);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Registry, Void, ::testing::ValuesIn(law_configs()), config_name);

// The infinity is in a bucket whose scheme has no memory. The other buckets still forget the step.
TEST(VoidStep, BucketsOfOtherSchemesForgetItToo) {
  for (const char* last : {"dense", "fp16", "terngrad", "topk:feedback=off"}) {
    for (const char* first : {"dgc:density=0.02", "powersgd", "onebit"}) {
      std::vector<Config> configs = everywhere(Config::parse(first));
      configs.back() = Config::parse(last);
      run_local(2, [&](Group& group) { law_nothing_stays(group, configs); });
    }
  }
}

// Buckets that were encoded long before the bad one arrives. Their averages are held back until
// this rank's gradients are known to be finite.
TEST(VoidStep, ManyBucketsBeforeTheBadOne) {
  for (const char* text : {"dgc:density=0.1", "powersgd:rank=1,rate=1", "csc", "int8", "efsign",
                           "randomk:memory=momentum", "signum"}) {
    const Config config = Config::parse(text);
    for (const std::size_t fuse : {0u, 4096u}) {
      run_local(2, [&](Group& group) {
        std::vector<Bucket> buckets;
        for (std::uint16_t b = 0; b < 12; ++b)
          buckets.push_back(Bucket{b, {{"w" + std::to_string(b), 0, 600, {20, 30}}}});
        ExchangeOptions options;
        options.fuse_bytes = fuse;
        Exchange exchange(group, buckets, config, options);
        for (std::uint64_t step = 0; step < 8; ++step) {
          Model model = model_gradient(buckets, Shape::normal, seed_of(group, step));
          const bool bad = step == 3;
          if (bad && group.rank() == 1) one_infinity(model);
          ASSERT_EQ(take_step(exchange, model, 0).skipped, bad) << text;
          for (const auto& bucket : model) ASSERT_LE(largest(bucket), 1e3) << text << " " << step;
        }
        EXPECT_LE(largest_in_state(exchange), 1e3) << text;
      });
    }
  }
}

// A non-finite state would make every later step skipped.
TEST(VoidStep, StateThatIsNotFiniteIsNotLoaded) {
  run_local(1, [](Group& group) {
    const std::vector<Bucket> buckets = {Bucket::single(0, "w", 10)};
    Exchange exchange(group, buckets, Config::parse("dgc"));
    State state = state_of(exchange);
    state.at("w/v").values[3] = std::numeric_limits<float>::quiet_NaN();
    StateLoader loader(state);
    const std::string text = error_of([&] { exchange.visit_state(loader); });
    EXPECT_NE(text.find("'w/v'"), std::string::npos) << text;
    EXPECT_NE(text.find("element 3"), std::string::npos) << text;
  });
}

}  // namespace
}  // namespace thinwire
