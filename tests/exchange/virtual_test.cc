// virtual_test.cc: N virtual ranks against N Exchanges, for every scheme and exchange.
// SPDX-License-Identifier: Apache-2.0
#include "tests/exchange/virtual_laws.h"

namespace thinwire::virtual_test {

using namespace testing;

class Virtual : public ::testing::TestWithParam<Config> {};

TEST_P(Virtual, RanksHaveTheBitsOfExchanges) {
  for (const int workers : {1, 2, 3, 4})
    EXPECT_EQ(law_virtual({.workers = workers, .config = GetParam()}), 2u);
}

TEST_P(Virtual, StripesToo) {
  for (const ExchangeKind& kind : striped_kinds(GetParam())) {
    for (const int workers : {1, 3})
      law_virtual({.workers = workers, .config = GetParam(), .options = {.kind = kind}});
  }
}

// Where a leg lies in a fused message decides in which order it is added.
TEST_P(Virtual, FusedSumsToo) {
  for (const std::size_t fuse_bytes : {5000u, 1u << 20})
    law_virtual({.workers = 3, .config = GetParam(), .options = {.fuse_bytes = fuse_bytes}});
}

TEST_P(Virtual, HalvesToo) {
  for (const Types& all : types)
    law_virtual({.workers = 3, .config = GetParam(), .buckets = buckets_of(all)});
}

INSTANTIATE_TEST_SUITE_P(Registry, Virtual, ::testing::ValuesIn(stream_configs()), config_name);

// More buckets than are in flight at once, with further rounds between first ones, alone and fused.
TEST(VirtualOrder, ManyBucketsOfSeveralRounds) {
  VirtualCase of{.workers = 3, .config = {}, .buckets = {}};
  for (std::uint16_t b = 0; b < 12; ++b)
    of.buckets.push_back(Bucket{b, {{"w" + std::to_string(b), 0, 600u + b, {20, 30}}}});
  for (Bucket& bucket : of.buckets) bucket.parameters[0].shape = {};
  for (const char* text :
       {"powersgd:rank=1,rate=1", "csc:chunk=7", "terngrad", "dense", "onebit"}) {
    of.config = Config::parse(text);
    for (const std::size_t fuse_bytes : {0u, 1000u, 6000u}) {
      of.options.fuse_bytes = fuse_bytes;
      law_virtual(of, [](const VirtualCase& all, int rank, std::uint64_t step) {
        const auto seed = step * 100 + static_cast<std::uint64_t>(rank);
        Model model = model_gradient(all.buckets, Shape::normal, seed);
        if (step == 3 && rank == 1) model[7][0] = std::numeric_limits<float>::infinity();
        return model;
      });
    }
  }
}

// Only who writes the averages sees that f16 cannot hold one; all ranks take the step back.
TEST(VirtualVoid, AnAverageTooLargeForHalves) {
  const std::vector<Bucket> halves = {
      Bucket{0, {{"w", 0, 300, {20, 15}}, {"bias", 300, 3, {}}}, DType::f16},
      Bucket{1, {{"v", 0, 200, {20, 10}}}, DType::f32}};
  // In the first step rank 1 has a NaN, and the others keep what they sent for the next one.
  const auto large = [](const VirtualCase& of, int rank, std::uint64_t step) {
    Model model;
    for (const Bucket& bucket : of.buckets)
      model.emplace_back(bucket.elements(), step < 3 ? 50000.0f : -30000.0f);
    if (step == 0 && rank == 1) model[1][0] = std::numeric_limits<float>::quiet_NaN();
    return model;
  };
  for (const char* text : {"powersgd:rank=1,rate=1", "dgc:density=1,values=f32,mask=off", "onebit",
                           "csc:density=1,select=previous", "csc:density=1"}) {
    const VirtualCase of{.workers = 3, .config = Config::parse(text), .buckets = halves};
    EXPECT_GT(law_virtual(of, large), 1u) << text;
  }
}

// A checkpoint of N processes goes on in N virtual ranks, and back.
TEST(VirtualState, MovesToExchangesAndBack) {
  for (const char* kind : {"auto", "split", "server:1"}) {
    VirtualCase of{.workers = 3, .config = Config::parse("dgc:density=0.05,warmup=6")};
    of.options.kind = ExchangeKind::parse(kind);
    const std::vector<Seen> expected = seen_by_exchanges(of, awkward_gradient);
    std::vector<State> saved(static_cast<std::size_t>(of.ranks()));
    {
      VirtualExchange middle(of.workers, of.buckets, of.config, of.options);
      for (int rank = 0; rank < of.ranks(); ++rank) {
        State state;
        ASSERT_TRUE(deserialize(expected[static_cast<std::size_t>(rank)].states[2], state).ok());
        StateLoader loader(state);
        middle.visit_state(rank, loader);
      }
      for (std::uint64_t step = 3; step < 6; ++step) {
        std::vector<Narrow> models = of_all_workers(of, awkward_gradient, step);
        EXPECT_EQ(step_of(middle, of.buckets, models, 0).step, step);
        EXPECT_TRUE(models[0] == expected[0].averages[step]) << kind << step;
      }
      for (int rank = 0; rank < of.ranks(); ++rank)
        saved[static_cast<std::size_t>(rank)] = state_of(middle, rank);
    }
    run_local(of.ranks(), [&](Group& group) {
      Exchange exchange(group, of.buckets, of.config, of.options);
      StateLoader loader(saved[static_cast<std::size_t>(group.rank())]);
      exchange.visit_state(loader);
      for (std::uint64_t step = 6; step < virtual_steps; ++step) {
        Narrow model = narrowed(of.buckets, awkward_gradient(of, group.rank(), step));
        step_of(exchange, of.buckets, model);
        if (group.rank() == 0) {
          EXPECT_TRUE(model == expected[0].averages[step]) << kind << step;
        }
      }
      EXPECT_TRUE(serialize(state_of(exchange)) ==
                  expected[static_cast<std::size_t>(group.rank())].states.back());
    });
  }
}

// Only these must be decoded on every rank; the others are decoded once for all.
TEST(VirtualCost, SchemesThatLearnFromWhatArrives) {
  for (const Config& config : law_configs()) {
    if (config.scheme.find('_') != std::string::npos) continue;  // another test's
    const auto compressor = make_compressor(config, awkward_buckets()[1], {0, 3});
    for (int round = 0; round < compressor->rounds(); ++round) {
      const bool first = config.scheme == "csc" || config.scheme == "terngrad";
      const bool learns = config.scheme == "powersgd" || (first && round == 0);
      EXPECT_EQ(compressor->learns(round), learns) << config.str() << round;
    }
  }
}

}  // namespace thinwire::virtual_test
