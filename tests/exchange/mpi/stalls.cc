// stalls.cc: rounds in one order between MPI processes that stall at random.
// SPDX-License-Identifier: Apache-2.0
#include "tests/exchange/stalls.h"

#include "thinwire/comm/mpi/mpi.h"

namespace {

thinwire::Group* world = nullptr;  // set in main, before the tests run

TEST(Mpi, StallsDoNotChangeBits) {
  thinwire::testing::law_stalls(*world, thinwire::Config::parse("powersgd:rank=2"));
}

}  // namespace

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  const auto body = [](thinwire::Group& group) {
    world = &group;
    return RUN_ALL_TESTS();
  };
  return thinwire::run_mpi(argc, argv, body, {.timeout = std::chrono::seconds(20)});
}
