// void_test.cc: an update that overflows ends delayed averaging on all ranks, with an error that
// says where it came from.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tests/delay/training.h"

namespace thinwire::testing {
namespace {

TEST(DelayedVoid, NamesTheRankAndTheParameter) {
  for (const char* scheme : {"dense", "topk:density=0.1", "dgc:density=0.1,momentum=0",
                             "onebit:memory=residual", "int8", "csc:momentum=0", "powersgd"}) {
    for (const float bad : {3e38f, std::numeric_limits<float>::infinity()}) {
      if (std::string(scheme) == "dense" && std::isfinite(bad)) continue;  // still a valid average
      std::vector<std::string> texts(2);
      run_local(2, [&](Group& group) {
        Task task(group);
        DelayOptions options;
        options.delay = options.local_steps = 3;
        const Config config = Config::parse(scheme);
        DelayedAverage delayed(group, task.buckets, views(task.weights), config, options);
        texts[static_cast<std::size_t>(group.rank())] = error_of([&] {
          for (std::uint64_t step = 0; step < 20; ++step) {
            task.step(step);
            if (step == 4 && group.rank() == 1) task.weights[1][77] = bad;
            delayed.finish_step();
          }
          delayed.drain();
        });
      });
      EXPECT_NE(texts[1].find("rank 1"), std::string::npos) << scheme << ": " << texts[1];
      EXPECT_NE(texts[1].find("parameter 'head'"), std::string::npos) << scheme << ": " << texts[1];
      EXPECT_NE(texts[0].find("another worker's update"), std::string::npos)
          << scheme << ": " << texts[0];
    }
  }
}

}  // namespace
}  // namespace thinwire::testing
