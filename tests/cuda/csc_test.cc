// csc_test.cc: csc and randomk, which send chunks through a sum, on a GPU against the CPU.
// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "tests/cuda/replay.h"
#include "tests/cuda/twins.h"
#include "thinwire/compress/csc_pick_cuda.h"
#include "thinwire/memory/largest.h"

namespace thinwire {
namespace {

const char* const csc_configs[] = {
    "csc",
    "csc:density=0.05,chunk=1024",
    "csc:density=0.3,chunk=1000,nesterov=on",
    "csc:density=0.1,chunk=7,values=bf16",
    "csc:density=0.5,chunk=1",
    "csc:density=1,chunk=3000,momentum=0",
    "csc:density=0.1,values=f16,warmup=2",
    "csc:density=0.1,select=previous,chunk=32",
    "csc:density=0.1,select=previous,chunk=2048,values=f16,warmup=2",
    "csc:density=0.2,select=previous,chunk=50,values=bf16,nesterov=on",
};

const char* const randomk_configs[] = {
    "randomk",
    "randomk:density=1,block=3",
    "randomk:density=0.1,memory=momentum",
    "randomk:density=0.05,block=16,seed=3",
    "randomk:density=0.1,block=5,memory=residual",
    "randomk:density=0.01,block=1000,memory=momentum,nesterov=on",
    "randomk:density=0.001,memory=residual",
};

class ChunkTwins : public TwinTest {
 protected:
  template <typename Law>
  static void for_all(Law law) {
    for (const char* config : csc_configs) law(config);
    for (const char* config : randomk_configs) law(config);
  }
};

TEST_F(ChunkTwins, CscKeepsAllLaws) {
  for (const char* config : csc_configs) all_laws(config);
  for (const std::string& config : configs_of("csc")) all_laws(config);
}

TEST_F(ChunkTwins, RandomkKeepsAllLaws) {
  for (const char* config : randomk_configs) all_laws(config);
  for (const std::string& config : configs_of("randomk")) all_laws(config);
}

// The memory is not looked at, so that the next pass settles what was sent.
TEST_F(ChunkTwins, StepsInARow) {
  for_all([&](const char* config) {
    const TwinOptions rarely{.memory = Memory::at_the_end};
    for (const std::size_t count : {1u, 100u, 70'001u})
      run(config, layers(count), 3, 8, Shape::heavy, rarely);
    law_void_steps(config, rarely);
  });
}

TEST_F(ChunkTwins, LargeBuckets) {
  const TwinOptions rarely{.memory = Memory::at_the_end};
  for (const char* config :
       {"csc", "csc:select=previous,values=f16", "randomk", "randomk:memory=momentum,density=0.01"})
    run(config, Bucket::single(0, "w", large_odd_size), 2, 3, Shape::heavy, rarely);
}

TEST_F(ChunkTwins, StepsCanBeCaptured) {
  for_all([&](const char* config) { expect_same_when_captured(config, layers(9'001), stream); });
}

// Values that f16 does not hold wait for later steps.
TEST_F(ChunkTwins, ValuesBeyondHalves) {
  const Bucket bucket = layers(5'000);
  for (const char* config : {csc_configs[6], csc_configs[8]}) {
    for (const Memory memory : {Memory::every_step, Memory::at_the_end}) {
      Twins twins(config, bucket, 2, stream, {.memory = memory});
      for (std::uint64_t step = 0; step < 6 && !HasFailure(); ++step) {
        auto all = gradients(Shape::heavy, bucket, 2, step);
        for (auto& one : all)
          for (std::size_t i = 0; i < one.size(); i += 3) one[i] *= 1e5f;
        twins.step(all);
      }
    }
  }
}

// Equal norms, zeros, and every number of chosen chunks.
TEST_F(ChunkTwins, PicksAreThoseOfTheCpu) {
  for (const std::uint32_t chunks : {1u, 2u, 31u, 64u, 1023u, 1024u, 1025u, 5000u}) {
    for (const std::uint32_t kinds : {1u, 3u, 1'000'000u}) {
      std::vector<float> norms(chunks);
      for (std::uint32_t i = 0; i < chunks; ++i)
        norms[i] = static_cast<float>(random_below(chunks, i, kinds)) * 0.37f;
      const OnGpu<float> there(norms);
      for (const std::uint32_t wanted : {1u, 2u, 7u, chunks / 10, chunks / 2, chunks - 1, chunks}) {
        if (wanted == 0 || wanted > chunks) continue;
        std::vector<std::uint64_t> keys;
        for (std::uint32_t i = 0; i < chunks; ++i) keys.push_back(magnitude_key(norms[i], i));
        nth_largest(keys, wanted);
        std::vector<std::uint32_t> expected;
        for (std::uint32_t i = 0; i < wanted; ++i) expected.push_back(index_of(keys[i]));
        std::sort(expected.begin(), expected.end());
        const OnGpu<std::uint32_t> picks(std::vector<std::uint32_t>(wanted, ~0u));
        csc_pick(there.data(), chunks, wanted, picks.data(), stream);
        EXPECT_EQ(picks.download(stream), expected) << chunks << ", " << kinds << ", " << wanted;
      }
    }
  }
}

}  // namespace
}  // namespace thinwire
