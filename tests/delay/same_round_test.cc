// same_round_test.cc: workers of delayed averaging that begin at different steps get an error with
// their first message. They neither hang nor continue training.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tests/delay/training.h"

namespace thinwire::same_round {

using namespace testing;

static std::vector<State> trained(const Setting& setting, std::uint64_t steps) {
  std::vector<State> states(3);
  run_local(3, [&](Group& group) {
    Training training(group, setting);
    training.run(0, steps);
    StateSaver saver(states[static_cast<std::size_t>(group.rank())]);
    training.visit_state(saver);
  });
  return states;
}

// From states of steps 9 and `other`. The error comes with the first message or with the drain.
static void expect_error(const Setting& setting, const std::vector<State>& states,
                         const State* other, const std::string& steps) {
  run_local(3, [&](Group& group) {
    const auto rank = static_cast<std::size_t>(group.rank());
    Training training(group, setting);
    const State* state = rank == 2 ? other : &states[rank];
    if (state != nullptr) {
      StateLoader loader(*state);
      training.visit_state(loader);
    }
    const std::string error = error_of([&] {
      training.run(9, 30);
      training.delayed().drain();
    });
    EXPECT_NE(error.find(steps), std::string::npos) << setting.str() << ": " << error;
  });
}

TEST(SameRound, OfDifferentCheckpointsIsAnErrorThatNamesRanksAndSteps) {
  for (const Setting& setting : {Setting{"randomk", "ledger", 4, 1},
                                 Setting{"dense", "ledger", 7, 3}, Setting{"dense", "soft", 8, 1},
                                 Setting{"csc:momentum=0,select=previous", "ledger", 4, 4}}) {
    const auto states = trained(setting, 9), later = trained(setting, 15);
    expect_error(setting, states, &later[2], "rank 0 begins at step ");
    expect_error(setting, states, nullptr, "rank 0 begins at step ");
  }
}

}  // namespace thinwire::same_round
