// run_tests.h: the main() of a test program that all ranks run together.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <chrono>

#include "tests/comm/engine.h"

namespace thinwire::testing {

// `world` is set before the tests run.
inline int run_tests(int argc, char** argv, Group*& world) {
  ::testing::InitGoogleTest(&argc, argv);
  const auto body = [&](Group& group) {
    world = &group;
    const int status = RUN_ALL_TESTS();
    group.barrier().wait();
    return status;
  };
  return run_ranks(argc, argv, body, {.timeout = std::chrono::seconds(20)});
}

}  // namespace thinwire::testing
