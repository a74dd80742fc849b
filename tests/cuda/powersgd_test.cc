// powersgd_test.cc: powersgd on a GPU against the CPU, to the bit: sums have one order on both.
// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <string>

#include "tests/cuda/replay.h"
#include "tests/cuda/twins.h"

namespace thinwire {
namespace {

Bucket bucket_with(const std::vector<std::vector<std::int64_t>>& shapes) {
  Bucket bucket{5, {}};
  std::size_t at = 0;
  for (const auto& shape : shapes) {
    std::size_t count = 1;
    for (const std::int64_t side : shape) count *= static_cast<std::size_t>(side);
    bucket.parameters.push_back({"p" + std::to_string(bucket.parameters.size()), at, count, shape});
    at += count;
  }
  return bucket;
}

// Vectors between matrices, so that most of these are not aligned; rows and columns around those of
// a tile and of a block, and one of each far beyond.
Bucket many_shapes() {
  return bucket_with({{7},
                      {64, 3, 7, 7},
                      {64},
                      {33, 130},
                      {0},
                      {131, 517},
                      {1},
                      {5, 2000},
                      {2000, 5},
                      {40, 40},
                      {1, 90},
                      {90, 1},
                      {128, 512},
                      {129, 513},
                      {3},
                      {31, 15},
                      {4, 4}});
}

const char* const powersgd_configs[] = {
    "powersgd",
    "powersgd:rank=1,rate=0.1",
    "powersgd:rank=1,error=local",
    "powersgd:rank=2,rate=0.1,error=local",
    "powersgd:rank=3,warm_start=off,rate=0.1",
    "powersgd:rank=4,rate=0.1",
    "powersgd:rank=5,rate=0.1",
    "powersgd:rank=9,rate=0.1,error=local",
    "powersgd:rank=32,rate=0.01",
    "powersgd:rank=2,warmup=2",
    "powersgd:rank=4,warmup=3,rate=0.1,error=local",
};

// A matrix of rank one and, `noise` times, others: the columns of P and Q nearly depend on each
// other.
std::vector<std::vector<float>> thin_gradients(const Bucket& bucket, int ranks, std::uint64_t step,
                                               float noise) {
  std::vector<std::vector<float>> all;
  for (int rank = 0; rank < ranks; ++rank) {
    const auto seed = 100 * step + static_cast<std::uint64_t>(rank);
    std::vector<float> one = testing::gradient(testing::Shape::normal, bucket.elements(), seed);
    for (float& x : one) x *= noise;
    for (const Parameter& parameter : bucket.parameters) {
      if (parameter.shape.size() < 2) continue;
      const std::size_t cols = parameter.count / static_cast<std::size_t>(parameter.shape[0]);
      for (std::size_t i = 0; i < parameter.count; ++i)
        one[parameter.offset + i] +=
            (random_unit(seed, i / cols) - 0.5f) * (random_unit(7, i % cols) - 0.5f);
    }
    all.push_back(one);
  }
  return all;
}

class PowerSgdTwins : public TwinTest {};

TEST_F(PowerSgdTwins, AllOptions) {
  for (const char* config : powersgd_configs) run(config, many_shapes(), 2, 6, Shape::normal);
  for (const std::string& config : configs_of("powersgd")) law_sizes(config);
}

// The memory is not looked at, so that take() subtracts what was sent.
TEST_F(PowerSgdTwins, StepsInARow) {
  for (const char* config : powersgd_configs)
    run(config, many_shapes(), 3, 7, Shape::heavy, {.memory = Memory::at_the_end});
}

TEST_F(PowerSgdTwins, ZeroMatricesAndEqualElements) {
  for (const char* config : powersgd_configs)
    for (const Shape shape : {Shape::zero, Shape::constant})
      run(config, many_shapes(), 2, 4, shape);
}

TEST_F(PowerSgdTwins, NearlyDependentColumns) {
  const Bucket bucket = many_shapes();
  for (const char* config : powersgd_configs) {
    for (const float noise : {0.0f, 1e-6f, 1e-12f}) {
      SCOPED_TRACE(config);
      Twins twins(config, bucket, 2, stream);
      for (std::uint64_t step = 0; step < 5 && !HasFailure(); ++step)
        twins.step(thin_gradients(bucket, 2, step, noise));
    }
  }
}

TEST_F(PowerSgdTwins, UnalignedGradientsAndHalves) {
  for (const char* config :
       {powersgd_configs[0], powersgd_configs[1], powersgd_configs[6], powersgd_configs[10]}) {
    for (const std::size_t offset : {1u, 2u, 3u})
      run(config, many_shapes(), 2, 4, Shape::normal, {.offset = offset});
    for (const DType type : {DType::f16, DType::bf16})
      run(config, many_shapes(), 2, 4, Shape::normal,
          {.dtype = type, .offset = 1, .memory = Memory::at_the_end});
  }
}

TEST_F(PowerSgdTwins, VoidSteps) {
  const float bad[] = {std::numeric_limits<float>::quiet_NaN(),
                       -std::numeric_limits<float>::infinity(), 1e30f};
  const Bucket bucket = many_shapes();
  for (const char* config : powersgd_configs) {
    for (const Memory memory : {Memory::every_step, Memory::at_the_end}) {
      SCOPED_TRACE(config);
      Twins twins(config, bucket, 2, stream, {.memory = memory});
      for (std::uint64_t step = 0; step < 10 && !HasFailure(); ++step) {
        auto all = gradients(Shape::normal, bucket, 2, step);
        if (step % 3 == 2) all[step % 2][random_below(step, 1, 90'000)] = bad[step % 4 % 3];
        if (step == 4) all[0].assign(bucket.elements(), 3e38f);
        if (step == 7) all[1][17] = 1e-45f;
        EXPECT_EQ(twins.step(all) == Code::skipped, step % 3 == 2 || step == 4) << step;
      }
    }
  }
}

TEST_F(PowerSgdTwins, OddValues) {
  for (const char* config : powersgd_configs) law_odd_values(config);
  const Bucket bucket = many_shapes();
  for (const float scale : {1e-41f, 1e-20f, 1e25f}) {
    Twins twins("powersgd:rank=2,rate=0.1", bucket, 2, stream);
    for (std::uint64_t step = 0; step < 4 && !HasFailure(); ++step) {
      auto all = gradients(Shape::normal, bucket, 2, step);
      for (auto& one : all)
        for (float& x : one) x *= scale;
      twins.step(all);
    }
  }
}

TEST_F(PowerSgdTwins, LargeMatrices) {
  const TwinOptions rarely{.memory = Memory::at_the_end};
  run("powersgd:rank=2", bucket_with({{3}, {4099, 4097}}), 2, 2, Shape::normal, rarely);
  run("powersgd:rank=1", bucket_with({{3, 700'001}}), 2, 2, Shape::normal, rarely);
  run("powersgd:rank=1", bucket_with({{700'001, 3}}), 2, 2, Shape::normal, rarely);
}

// Two runs of the same steps have the same bits, and a captured step does what it does outside.
TEST_F(PowerSgdTwins, StepsCanBeCaptured) {
  for (const char* config : powersgd_configs)
    expect_same_when_captured(config, many_shapes(), stream);
}

}  // namespace
}  // namespace thinwire
