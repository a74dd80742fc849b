// stalls.cc: rounds in one order between processes over Gloo that stall at random.
// SPDX-License-Identifier: Apache-2.0
#include "tests/exchange/stalls.h"

#include "tests/comm/c10d/join.h"

namespace {

thinwire::Group* world = nullptr;  // set in main, before the tests run

TEST(C10d, StallsDoNotChangeBits) {
  thinwire::testing::law_stalls(*world, thinwire::Config::parse("powersgd:rank=2"));
}

}  // namespace

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  const auto group =
      thinwire::make_gloo_group(thinwire::testing::job(), {.timeout = std::chrono::seconds(20)});
  world = group.get();
  const int status = RUN_ALL_TESTS();
  group->barrier().wait();
  return status;
}
