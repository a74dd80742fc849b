// process_laws.cc: the laws of delayed averaging between real processes.
// SPDX-License-Identifier: Apache-2.0
#include "tests/comm/run_tests.h"
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
  return thinwire::testing::run_tests(argc, argv, thinwire::world);
}
