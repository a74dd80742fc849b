// halves_test.cc: gradients of f16 and bf16, in some buckets or in all, through an Exchange and a
// StreamExchange on the CPU.
// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>

#include "tests/exchange/halves.h"
#include "thinwire/compress/widened.h"

namespace thinwire {
namespace {

using namespace testing;

class HalvesLaws : public ::testing::TestWithParam<Config> {};

// Law: the average is that of the widened gradients, rounded; memory is theirs to the bit. So all
// laws of f32 hold: replicas, conservation to the rounding, skipped steps, resumed runs.
void law_widened(Group& group, const Config& config, const ExchangeOptions& options,
                 const Types& all) {
  const std::string what = config.str() + options.str() + text_of(all);
  const auto buckets = buckets_of(all);
  Exchange floats(group, awkward_buckets(), config, options);
  Exchange halves(group, buckets, config, options);
  const bool works = group.rank() < options.kind.workers(group.size());
  std::uint64_t skipped = 0;
  for (std::uint64_t step = 0; step < 8; ++step) {
    Narrow narrow = narrowed(buckets, course_gradient(group, buckets, step));
    Model model = widened_model(buckets, narrow);
    const StepResult expected = take_step(floats, model, step);
    StepResult result;
    if (works || step % 2 == 0) {
      result = step_of(halves, buckets, narrow);
      for (const Bucket& bucket : buckets)
        ASSERT_EQ(narrow[bucket.id], narrowed(buckets, model)[bucket.id])
            << what << " step " << step << " bucket " << bucket.id;
    } else {
      result = halves.serve();
    }
    ASSERT_EQ(result.skipped, expected.skipped) << what << " step " << step;
    ASSERT_EQ(serialize(state_of(halves)), serialize(state_of(floats))) << what << " step " << step;
    skipped += result.skipped ? 1 : 0;
  }
  EXPECT_EQ(skipped, 2u) << what;
  EXPECT_EQ(halves.report().payload_bytes, floats.report().payload_bytes) << what;
  EXPECT_EQ(halves.report().dense_bytes, floats.report().dense_bytes) << what;
}

TEST_P(HalvesLaws, AreThoseOfTheWidenedGradients) {
  for (const Types& all : types)
    run_local(3, [&](Group& group) { law_widened(group, GetParam(), {}, all); });
  for (const char* kind : {"split", "server:1"}) {
    const ExchangeOptions options{.kind = ExchangeKind::parse(kind)};
    if (!error_of([&] { check_fit(options.kind, GetParam()); }).empty()) continue;
    run_local(3, [&](Group& group) { law_widened(group, GetParam(), options, types[2]); });
  }
  const ExchangeOptions fused{.fuse_bytes = 1'000'000};
  run_local(2, [&](Group& group) { law_widened(group, GetParam(), fused, types[2]); });
}

std::vector<Config> configs_that_widen() {
  std::vector<Config> configs = law_configs();
  std::erase_if(configs, [](const Config& one) { return find_scheme(one.scheme).halves; });
  return configs;
}

INSTANTIATE_TEST_SUITE_P(Registry, HalvesLaws, ::testing::ValuesIn(configs_that_widen()),
                         config_name);

// Law: schemes that sum halves as they are have identical replicas, the mean to the rounding of
// halves, and skipped steps.
TEST(Halves, AreSummedAsTheyAre) {
  for (const char* text : {"dense", "fp16", "bf16"}) {
    for (const Types& all : types) {
      run_local(3, [&](Group& group) {
        const auto buckets = buckets_of(all);
        Exchange exchange(group, buckets, Config::parse(text));
        for (std::uint64_t step = 0; step < 8; ++step) {
          Narrow narrow = narrowed(buckets, course_gradient(group, buckets, step));
          Model mean = widened_model(buckets, narrow);
          const bool skipped = step_of(exchange, buckets, narrow).skipped;
          ASSERT_EQ(skipped, step == 3 || step == 6) << text;
          std::vector<Replica> replicas;
          for (const auto& bytes : narrow) replicas.push_back({"average", bytes});
          ASSERT_NO_THROW(check_replicas(group, replicas)) << text << text_of(all);
          const Model average = widened_model(buckets, narrow);
          for (const Bucket& bucket : buckets) {
            std::vector<float>& sum = mean[bucket.id];
            group.all_reduce(std::as_writable_bytes(std::span(sum)), DType::f32, ReduceOp::sum, {})
                .wait();
            for (std::size_t i = 0; i < sum.size(); ++i) {
              const float expected = skipped ? 0 : sum[i] / 3;
              ASSERT_NEAR(average[bucket.id][i], expected,
                          skipped ? 0 : 0.05 + 0.02 * std::fabs(expected))
                  << text << text_of(all);
            }
          }
        }
      });
    }
  }
}

// Law: sent plus kept equals given, to the rounding of the averages.
TEST(Halves, NothingIsLostButTheRoundingOfAverages) {
  for (const char* text : {"topk:density=0.05", "dgc:density=0.05,momentum=0", "csc:momentum=0",
                           "onebit:memory=residual", "powersgd", "int8", "threshold"}) {
    for (const Types& all : types) {
      run_local(2, [&](Group& group) {
        const auto buckets = buckets_of(all);
        Exchange exchange(group, buckets, Config::parse(text));
        std::vector<std::vector<double>> left, room;
        for (const Bucket& bucket : buckets) {
          left.emplace_back(bucket.elements());
          room.emplace_back(bucket.elements(), 1e-3);
        }
        for (std::uint64_t step = 0; step < 40; ++step) {
          Narrow narrow =
              narrowed(buckets, model_gradient(buckets, Shape::normal, seed_of(group, step)));
          const Model given = widened_model(buckets, narrow);
          step_of(exchange, buckets, narrow);
          const Model average = widened_model(buckets, narrow);
          for (std::size_t b = 0; b < buckets.size(); ++b) {
            for (std::size_t i = 0; i < given[b].size(); ++i) {
              left[b][i] += given[b][i] - average[b][i];
              room[b][i] += 2 * 0x1p-8 * std::fabs(average[b][i]);  // of bf16, the coarser one
            }
          }
        }
        const State state = state_of(exchange);
        for (const Bucket& bucket : buckets) {
          for (const Parameter& parameter : bucket.parameters) {
            std::vector<float> lost(parameter.count);
            for (std::size_t i = 0; i < parameter.count; ++i)
              lost[i] = static_cast<float>(left[bucket.id][parameter.offset + i] -
                                           state.at(parameter.name + "/v").values[i]);
            group.all_reduce(std::as_writable_bytes(std::span(lost)), DType::f32, ReduceOp::sum, {})
                .wait();
            for (std::size_t i = 0; i < parameter.count; ++i)
              ASSERT_NEAR(lost[i], 0, room[bucket.id][parameter.offset + i])
                  << text << text_of(all) << ' ' << parameter.name << ' ' << i;
          }
        }
      });
    }
  }
}

// Law: stop, save, load, continue: the same bits.
TEST(Halves, ResumeIsExact) {
  for (const char* text : {"dgc:density=0.05", "onebit", "powersgd", "csc", "signum"}) {
    run_local(2, [&](Group& group) {
      const auto buckets = buckets_of(types[2]);
      const auto run = [&](Exchange& exchange, std::uint64_t from, std::uint64_t to) {
        Narrow last;
        for (std::uint64_t step = from; step < to; ++step) {
          last = narrowed(buckets, course_gradient(group, buckets, step));
          step_of(exchange, buckets, last);
        }
        return last;
      };
      Exchange straight(group, buckets, Config::parse(text));
      const Narrow expected = run(straight, 0, 12);
      Exchange first(group, buckets, Config::parse(text));
      run(first, 0, 5);
      State state = state_of(first);
      Exchange second(group, buckets, Config::parse(text));
      StateLoader loader(state);
      second.visit_state(loader);
      EXPECT_EQ(run(second, 5, 12), expected) << text;
    });
  }
}

TEST(Halves, StreamsHaveTheBitsOfAnExchange) {
  for (const char* text : {"dense", "fp16", "bf16", "topk:density=0.02", "dgc:density=0.02",
                           "dgc:density=0.02,clip=0.5", "onebit", "int8", "powersgd"}) {
    for (const Types& all : types)
      run_local(2, [&](Group& group) { law_halves(group, Config::parse(text), all, {group}); });
  }
}

TEST(Halves, AnAverageThatF16CannotHoldSkipsTheStep) {
  for (const int ranks : {1, 2}) {
    run_local(ranks, [](Group& group) {
      law_overflow(group);
      law_overflow_on({group});
    });
  }
}

// A scheme without memory does not look at its gradient. The memory of another bucket must know.
TEST(Halves, ABadOneUndoesTheOtherBuckets) {
  for (const DType type : {DType::f16, DType::bf16}) {
    run_local(2, [&](Group& group) {
      const std::vector<Config> configs = {Config::parse("dense"), Config::parse("topk")};
      const std::vector<Bucket> buckets = {Bucket::single(0, "a", 100, type),
                                           Bucket::single(1, "b", 5000, type)};
      Exchange halves(group, buckets, configs);
      Exchange floats(group, {widened(buckets[0]), widened(buckets[1])}, configs);
      for (std::uint64_t step = 0; step < 5; ++step) {
        Model model = model_gradient(buckets, Shape::normal, seed_of(group, step));
        if (step == 2 && group.rank() == 1) model[0][5] = std::numeric_limits<float>::infinity();
        Narrow narrow = narrowed(buckets, model);
        model = widened_model(buckets, narrow);
        take_step(floats, model, 0);
        ASSERT_EQ(step_of(halves, buckets, narrow).skipped, step == 2);
        ASSERT_EQ(serialize(state_of(halves)), serialize(state_of(floats))) << step;
      }
    });
  }
}

// Stripes widen a whole bucket on a device too.
TEST(Halves, InStripesOverStreamsAreAsInAnExchange) {
  for (const char* text : {"dgc:density=0.02", "int8", "threshold"}) {
    for (const char* kind : {"split", "server:1"}) {
      const ExchangeOptions options{.kind = ExchangeKind::parse(kind)};
      run_local(3, [&](Group& group) {
        law_halves(group, Config::parse(text), types[2], {group}, options);
      });
    }
  }
}

// A scheme whose collective runs in the gradient's own memory gets memory of its own for it.
TEST(Halves, SumsInPlaceAreWidenedToo) {
  run_local(3, [](Group& group) {
    const Bucket bucket = Bucket::single(0, "w", 1001, DType::bf16);
    const Site site{group.rank(), group.size()};
    std::vector<std::unique_ptr<Compressor>> compressors;
    compressors.push_back(widened(make_compressor({"dense", {}}, widened(bucket), site), bucket));
    EXPECT_EQ(compressors[0]->leg(0, 0).dtype, DType::f32);
    Exchange halves(group, {bucket}, std::move(compressors), "dense");
    Exchange floats(group, {widened(bucket)}, Config::parse("dense"));
    for (std::uint64_t step = 0; step < 3; ++step) {
      Narrow narrow =
          narrowed({bucket}, model_gradient({bucket}, Shape::heavy, seed_of(group, step)));
      Model model = widened_model({bucket}, narrow);
      take_step(floats, model, 0);
      step_of(halves, {bucket}, narrow);
      ASSERT_EQ(narrow, narrowed({bucket}, model));
    }
  });
}

TEST(Halves, WhatDoesNotFitIsAnError) {
  std::vector<float> memory(64);
  run_local(1, [&](Group& group) {
    const std::vector<Bucket> halves = {Bucket::single(0, "w", 64, DType::bf16)};
    for (const char* text : {"dense", "onebit", "dgc:clip=1"}) {
      Exchange exchange(group, halves, Config::parse(text));
      exchange.submit(0, memory);
      EXPECT_NE(error_of([&] { exchange.finish(); }).find("expected bf16 elements, got f32"),
                std::string::npos)
          << text;
    }
    StreamExchange streams({group}, halves, Config::parse("topk"));
    EXPECT_EQ(error_of([&] { streams.submit(0, memory, {}); }),
              "rank 0, step 0, bucket 0: expected bf16 elements, got f32");
    const std::vector<Bucket> whole = {Bucket::single(0, "w", 64, DType::i8)};
    EXPECT_EQ(error_of([&] { Exchange(group, whole, Config::parse("topk")); }),
              "bucket 0: gradients are f32, f16 or bf16, got i8; convert them first");
    const Arrays weights = {memory};
    EXPECT_EQ(error_of([&] {
                DelayedAverage(group, halves, weights, Config::parse("topk"), {});
              }).find("delay: bucket 0 is of bf16"),
              0u);
  });
  run_local(2, [](Group& group) {
    const DType type = group.rank() == 0 ? DType::bf16 : DType::f16;
    const std::vector<Bucket> differ = {Bucket::single(0, "w", 64, type)};
    EXPECT_NE(error_of([&] { Exchange(group, differ, Config::parse("topk")); }).find("or types"),
              std::string::npos);
  });
}

}  // namespace
}  // namespace thinwire
