// sparse_test.cc: topk and dgc on a GPU against the CPU: the same frames, averages and memory, bit
// for bit, whatever the options, sizes and values.
// SPDX-License-Identifier: Apache-2.0
#include <limits>
#include <string>

#include "tests/cuda/twins.h"

namespace thinwire {
namespace {

using testing::gradient;
using testing::Shape;

using SparseTwins = TwinTest;

const char* const configs[] = {
    "dgc:density=0.01",
    "dgc:density=0.01,values=f32,select=exact,nesterov=on",
    "dgc:density=0.05,values=sign,clip=0.5,mask=on",
    "dgc:density=0.1,values=bf16,quota=layer,clip=1,clip_norm=bucket",
    "dgc:density=0.02,warmup=8,values=log8,mask=off",
    "dgc:density=0.001,index=smallest",
    "dgc:density=0.03,momentum=0,index=gap,values=f16",
    "topk:density=0.01,values=f32,select=exact",
    "topk:density=0.05,values=sign,index=elias_fano",
    "topk:density=0.1,values=f16,quota=layer",
    "topk:density=1,values=f32",
    "topk:density=0.02,warmup=8,index=gap",
    "topk:density=0.02,feedback=off",
    "topk:density=0.05,feedback=off,quota=layer,values=log8",
};

TEST_F(SparseTwins, AllOptionsAndSizes) {
  for (const char* config : configs) {
    for (const std::size_t count : {0u, 1u, 2u, 31u, 4095u, 4096u, 4097u, 50'001u})
      run(config, layers(count), 2, 6, Shape::normal);
    if (HasFailure()) return;
  }
}

TEST_F(SparseTwins, AllShapes) {
  for (const char* config : configs)
    for (const Shape shape : {Shape::heavy, Shape::constant, Shape::zero})
      run(config, layers(20'011), 3, 6, shape);
}

TEST_F(SparseTwins, UnalignedGradients) {
  for (const char* config : {configs[0], configs[9]}) law_unaligned(config);
}

TEST_F(SparseTwins, ManyRanks) { run(configs[0], layers(10'000), 9, 3, Shape::heavy); }

TEST_F(SparseTwins, LargeBuckets) {
  run("dgc:density=0.001", Bucket::single(0, "w", (std::size_t{1} << 24) + 3), 2, 3, Shape::heavy);
  run("topk:density=0.001,quota=layer", layers((std::size_t{1} << 22) + 77), 2, 3, Shape::normal);
}

TEST_F(SparseTwins, VoidSteps) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  for (const char* config : configs) {
    SCOPED_TRACE(config);
    const Bucket bucket = layers(9'001);
    Twins twins(config, bucket, 2, stream);
    for (std::uint64_t step = 0; step < 12; ++step) {
      std::vector<std::vector<float>> gradients;
      for (std::uint64_t rank = 0; rank < 2; ++rank)
        gradients.push_back(gradient(Shape::heavy, bucket.elements(), 10 * step + rank));
      if (step % 3 == 1) gradients[step % 2][step * 700] = step % 4 == 1 ? nan : inf;
      if (step == 5) gradients[0].assign(bucket.elements(), 3e38f);
      if (step == 8) gradients[1][17] = 1e-45f;
      const bool skipped = twins.step(gradients) == Code::skipped;
      if (step != 5) {  // clipping may bring 3e38 within the limit
        EXPECT_EQ(skipped, step % 3 == 1) << step;
      }
      if (HasFailure()) return;
    }
  }
}

// More tiles than the kernel has blocks.
TEST_F(SparseTwins, VoidStepsOfManyTiles) {
  if (small_run()) GTEST_SKIP() << "a small run";
  const Bucket bucket = layers(1'500'001);
  for (const char* config : {"dgc:density=0.01", "topk:density=0.01"}) {
    Twins twins(config, bucket, 2, stream, {.memory = Memory::at_the_end});
    for (std::uint64_t step = 0; step < 4; ++step) {
      auto all = gradients(Shape::heavy, bucket, 2, step);
      if (step == 2) all[1].back() = std::numeric_limits<float>::infinity();
      EXPECT_EQ(twins.step(all) == Code::skipped, step == 2) << step;
    }
  }
}

TEST_F(SparseTwins, GradientsOfHalves) { law_halves("dgc:density=0.02"); }

// One far chunk takes all survivors, then another: longer lists than a block has threads.
TEST_F(SparseTwins, ClusteredSurvivors) {
  const std::size_t count = 300'000;
  for (const char* config : {"dgc:density=0.01", "topk:density=0.01,index=elias_fano",
                             "dgc:density=0.01,index=gap", "topk:density=0.01,values=sign"}) {
    Twins twins(config, Bucket::single(7, "w", count), 2, stream);
    for (std::uint64_t step = 0; step < 5; ++step) {
      std::vector<std::vector<float>> gradients(2, gradient(Shape::normal, count, step));
      for (auto& one : gradients)
        for (std::size_t i = 0; i < 5000; ++i) one[step * 50'000 + i] *= 1000;
      twins.step(gradients);
      if (HasFailure()) return;
    }
  }
}

}  // namespace
}  // namespace thinwire
