// process_laws.cc: the laws of delayed averaging between real processes.
// SPDX-License-Identifier: Apache-2.0
#include "tests/comm/run_tests.h"
#include "tests/delay/training.h"

namespace thinwire {
namespace {

using namespace testing;

Group* world = nullptr;  // set in main, before the tests run

// Settings that differ in what is sent and when. delayed_test.cc tests all of them, on threads.
std::vector<Setting> travelling() {
  return {{"dense", "ledger", 7, 3},       {"dgc:momentum=0,density=0.05", "ledger:book=b", 6, 2},
          {"int8", "ledger:book=b", 4, 1}, {"dense", "pull", 6, 1},
          {"dense", "published", 6, 3},    {"powersgd", "ledger", 4, 4},
          {"dense", "soft", 8, 1}};
}

TEST(Processes, AnchorsAreEqualAfterDrain) {
  for (const Setting& setting : travelling()) law_anchors(*world, setting);
}

TEST(Processes, ResumeIsExactWithMessagesUnderWay) {
  if (world->size() > 4) return;  // each rank saves only its own state
  for (const Setting& setting : travelling()) law_resume(*world, setting);
}

TEST(Processes, WithoutDelayItIsSynchronousTraining) { law_synchronous(*world); }

TEST(Processes, NeverWaitsForYoungMessages) { law_never_waits(*world); }

}  // namespace
}  // namespace thinwire

int main(int argc, char** argv) {
  return thinwire::testing::run_tests(argc, argv, thinwire::world);
}
