// loaded_test.cc: a state loaded into messages that are already running: ranks agree again on where
// they are.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tests/gradients.h"
#include "thinwire/delay/pipeline.h"
#include "thinwire/thinwire.h"

namespace thinwire::loaded {

using testing::error_of;

// After a first round, every rank goes on from the round that it loads.
static std::string go_on(Group& group, double round, std::uint64_t& collectives) {
  Pipeline rounds(group, {Bucket::single(0, "w", 4)}, Config::parse("dense"), 1, false);
  rounds.start({std::vector<float>(4)});
  rounds.take();
  const State state = {{"delay/round", {Share::replicated, {}, round}},
                       {"delay/arrived", {Share::replicated, {}, 0}}};
  StateLoader loader(state);
  rounds.visit_state(loader);
  const std::uint64_t before = group.traffic().collectives;
  const std::string error = error_of([&] {
    rounds.start({std::vector<float>(4)});
    rounds.take();
  });
  collectives = group.traffic().collectives - before;
  return error;
}

TEST(Pipeline, RanksAgreeAgainAfterALoad) {
  run_local(2, [](Group& group) {
    std::uint64_t collectives = 0;
    EXPECT_EQ(go_on(group, 1, collectives), "");
    EXPECT_EQ(collectives, 1u) << "nothing has changed: no need to ask";
    EXPECT_EQ(go_on(group, 7, collectives), "");
    EXPECT_EQ(collectives, 3u);
  });
  run_local(2, [](Group& group) {
    std::uint64_t collectives = 0;
    const std::string text = go_on(group, group.rank() == 0 ? 5 : 6, collectives);
    EXPECT_NE(text.find("rank 0 begins at round 5, rank 1 at round 6"), std::string::npos) << text;
  });
}

}  // namespace thinwire::loaded
