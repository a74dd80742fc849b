// laws_test.cc: every scheme of the registry under every law, on the local engine.
// SPDX-License-Identifier: Apache-2.0
#include "tests/laws.h"
#include "tests/unbiased.h"

namespace thinwire {
namespace {

using namespace testing;

class Laws : public ::testing::TestWithParam<Config> {};

TEST_P(Laws, ReplicasAreBitIdentical) {
  for (const int ranks : {1, 2, 3, 8}) {
    if (sanitized && ranks > 3) break;
    run_local(ranks, [&](Group& group) {
      law_replicas(group, GetParam(), Shape::normal, 6);
      law_replicas(group, GetParam(), Shape::heavy, 6);
      law_replicas(group, GetParam(), Shape::zero, 2);
      law_replicas(group, GetParam(), Shape::constant, 4);
    });
  }
}

TEST_P(Laws, ConservationAndBoundedResidual) {
  const int steps = sanitized ? 30 : 150;
  for (const int ranks : {1, 3}) {
    run_local(ranks, [&](Group& group) {
      law_conservation(group, GetParam(), Shape::normal, steps);
      law_conservation(group, GetParam(), Shape::heavy, steps);
    });
  }
}

TEST_P(Laws, ResumeIsExact) {
  for (const int ranks : {1, 2, 4}) {
    run_local(ranks, [&](Group& group) { law_resume(group, GetParam()); });
  }
}

TEST_P(Laws, NonFiniteGradientSkipsTheStepOnAllRanks) {
  for (const int ranks : {1, 2, 4}) {
    run_local(ranks, [&](Group& group) { law_nan(group, GetParam()); });
  }
}

TEST_P(Laws, StochasticSchemesAreRightOnAverage) {
  run_local(2, [&](Group& group) {
    law_unbiased(group, GetParam(), Shape::normal, 2000);
    law_unbiased(group, GetParam(), Shape::heavy, 2000);
  });
}

// One worker's step by hand: every round is encoded, returned unchanged, and decoded. Returns the
// bytes of all rounds. Checks that nothing is written beyond the end.
std::size_t bytes_of_step(Compressor& compressor, const Config& config, std::vector<float>& g,
                          std::uint64_t step) {
  const Scheme& scheme = find_scheme(config.scheme);
  const std::byte guard{0xa5};
  std::size_t total = 0;
  for (int round = 0; round < compressor.rounds(); ++round) {
    const Leg leg = compressor.leg(step, round);
    std::vector<std::byte> out(leg.bytes + 16, guard);
    const Turn turn{step, round, {}, 0};
    Bytes room = Bytes(out).first(leg.bytes);
    if (leg.in_place) room = std::as_writable_bytes(std::span(g));
    const std::size_t bytes = compressor.encode(turn, std::span(g), room);
    EXPECT_LE(bytes, leg.bytes) << config.str();
    if (leg.reduction != Reduction::gather) {
      EXPECT_EQ(bytes, leg.bytes) << config.str();
    }
    for (std::size_t i = leg.bytes; i < out.size(); ++i) EXPECT_EQ(out[i], guard);
    EXPECT_TRUE(!scheme.reducible || leg.reduction != Reduction::gather) << config.str();
    const std::size_t sizes[] = {bytes};
    const Inbox inbox{room, leg.bytes, sizes};
    EXPECT_TRUE(compressor.decode(turn, inbox, std::span(g)).ok()) << config.str();
    total += bytes;
  }
  return total;
}

// Law: no scheme writes more than it announced, and exactly that if the table has a formula.
TEST_P(Laws, BytesAreThoseOfTheFormula) {
  const Scheme& scheme = find_scheme(GetParam().scheme);
  std::vector<Bucket> buckets = awkward_buckets();
  for (const std::size_t count : {0u, 1u, 2u, 3u, 7u, 63u, 64u, 65u, 1000u, 70001u})
    buckets.push_back(Bucket::single(0, "w", count));
  for (const Bucket& bucket : buckets) {
    const auto compressor = make_compressor(GetParam(), bucket, {0, 1});
    for (std::uint64_t step = 0; step < 6; ++step) {
      auto g = gradient(step % 2 ? Shape::heavy : Shape::constant, bucket.elements(), step);
      const std::size_t bytes = bytes_of_step(*compressor, GetParam(), g, step);
      const std::size_t expected =
          scheme.bytes ? scheme.bytes(Options(GetParam(), scheme.options), bucket) : 0;
      if (expected > 0) {
        ASSERT_EQ(bytes, expected) << GetParam().str() << ", " << bucket.elements() << " elements";
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Registry, Laws, ::testing::ValuesIn(law_configs()), config_name);

// At density 1 with exact values, a sparse scheme is dense averaging.
TEST(Sparse, EverythingSentIsTheMean) {
  run_local(3, [](Group& group) {
    const std::vector<Bucket> buckets = {Bucket::single(0, "w", 1234)};
    Exchange dense(group, buckets, Config::parse("dense"));
    Exchange sparse(group, buckets, Config::parse("topk:density=1,values=f32"));
    for (std::uint64_t step = 0; step < 3; ++step) {
      Model a = model_gradient(buckets, Shape::normal, seed_of(group, step)), b = a;
      take_step(dense, a, 0);
      take_step(sparse, b, 0);
      for (std::size_t i = 0; i < a[0].size(); ++i) ASSERT_NEAR(a[0][i], b[0][i], 1e-6);
    }
  });
}

// Momentum correction against double precision: send rarely, and compare the residual with the
// recurrence of the paper.
TEST(Dgc, MomentumCorrectionIsThePapers) {
  const std::size_t count = 500;
  for (const bool nesterov : {false, true}) {
    const Config config = Config::parse(
        std::string("dgc:density=0.002,values=f32,select=exact,mask=on,momentum=0.8") +
        (nesterov ? ",nesterov=on" : ""));
    run_local(1, [&](Group& group) {
      Exchange exchange(group, {Bucket::single(0, "w", count)}, config);
      std::vector<double> u(count), v(count);
      for (std::uint64_t step = 0; step < 30; ++step) {
        auto g = gradient(Shape::normal, count, step);
        std::size_t largest = 0;
        for (std::size_t i = 0; i < count; ++i) {
          if (nesterov) {
            u[i] = 0.8 * (u[i] + g[i]);
            v[i] += u[i] + g[i];
          } else {
            u[i] = 0.8 * u[i] + g[i];
            v[i] += u[i];
          }
          if (std::abs(v[i]) > std::abs(v[largest])) largest = i;
        }
        exchange.submit(0, std::span(g));
        exchange.finish();
        ASSERT_NEAR(g[largest], v[largest], 1e-4);
        u[largest] = v[largest] = 0;
      }
      const State state = state_of(exchange);
      for (std::size_t i = 0; i < count; ++i) {
        ASSERT_NEAR(state.at("w/u").values[i], u[i], 1e-4);
        ASSERT_NEAR(state.at("w/v").values[i], v[i], 1e-4);
      }
    });
  }
}

// Factor masking: sent elements lose their momentum, unless masking is off.
TEST(Dgc, MaskingIsAChoice) {
  for (const bool mask : {true, false}) {
    run_local(1, [&](Group& group) {
      Exchange exchange(
          group, {Bucket::single(0, "w", 100)},
          Config::parse(std::string("dgc:density=0.01,values=f32,select=exact,mask=") +
                        (mask ? "on" : "off")));
      std::vector<float> g(100, 0.25f);
      g[42] = 8;
      exchange.submit(0, g);
      exchange.finish();
      EXPECT_EQ(g[42], 8.0f);
      const State state = state_of(exchange);
      EXPECT_EQ(state.at("w/u").values[42], mask ? 0.0f : 8.0f);
      EXPECT_EQ(state.at("w/v").values[42], 0.0f);
    });
  }
}

// Local clipping: each rank's norm is at most clip / sqrt(N), over all buckets together
// or over each.
TEST(Dgc, ClipsByTheGlobalNorm) {
  const std::vector<Bucket> buckets = {Bucket::single(0, "a", 300), Bucket::single(1, "b", 50)};
  for (const bool global : {true, false}) {
    run_local(4, [&](Group& group) {
      const Config config =
          Config::parse(std::string("dgc:density=1,values=f32,momentum=0,clip=3,clip_norm=") +
                        (global ? "global" : "bucket"));
      Exchange exchange(group, buckets, config);
      // Only rank 0 has a gradient, so the average is a quarter of its clipped gradient.
      Model model = model_gradient(buckets, group.rank() == 0 ? Shape::normal : Shape::zero, 3);
      const Model before = model;
      take_step(exchange, model, 0);
      const double a = 4 * norm(model[0]), b = 4 * norm(model[1]);
      if (global) {
        EXPECT_NEAR(std::hypot(a, b), 1.5, 1e-4);
        const double expected = norm(before[0]) / norm(before[1]);
        EXPECT_NEAR(a / b, group.rank() == 0 ? expected : a / b, 1e-3);
      } else {
        EXPECT_NEAR(a, 1.5, 1e-4);
        EXPECT_NEAR(b, 1.5, 1e-4);
      }
    });
  }
}

// An early warm-up step sends a quarter of all elements: as a dense sum, because the frames of
// eight ranks would be larger.
TEST(Dgc, WarmupFallsBackToTheDenseSum) {
  const Bucket bucket = Bucket::single(0, "w", 10000);
  const auto compressor =
      make_compressor(Config::parse("dgc:warmup=40,values=f32"), bucket, {0, 8});
  EXPECT_EQ(compressor->leg(0, 0).reduction, Reduction::sum);
  EXPECT_EQ(compressor->leg(40, 0).reduction, Reduction::gather);
  run_local(8, [&](Group& group) {
    law_replicas(group, Config::parse("dgc:warmup=8,values=f32"), Shape::normal, 12);
  });
}

}  // namespace
}  // namespace thinwire
