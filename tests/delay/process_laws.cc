// process_laws.cc: the laws of delayed averaging between real processes.
// SPDX-License-Identifier: Apache-2.0
#include <chrono>

#include "tests/comm/engine.h"
#include "tests/delay/training.h"

namespace thinwire {
namespace {

using namespace testing;

Group* world = nullptr;  // set in main, before the tests run

TEST(Processes, AnchorsAreEqualAfterDrain) {
  for (const Setting& setting : settings()) law_anchors(*world, setting);
}

TEST(Processes, ResumeIsExactWithMessagesUnderWay) {
  if (world->size() > 4) return;  // what is saved is each rank's own
  for (const Setting& setting : settings()) law_resume(*world, setting);
}

TEST(Processes, WithoutDelayItIsSynchronousTraining) { law_synchronous(*world); }

TEST(Processes, NeverWaitsForYoungMessages) { law_never_waits(*world); }

}  // namespace
}  // namespace thinwire

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  const auto body = [](thinwire::Group& group) {
    thinwire::world = &group;
    const int status = RUN_ALL_TESTS();
    group.barrier().wait();
    return status;
  };
  return thinwire::testing::run_ranks(argc, argv, body, {.timeout = std::chrono::seconds(20)});
}
