// target_test.cc: every vector width of this machine can be selected by name.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/target.h"

#include <gtest/gtest.h>

#include "thinwire/core/error.h"

namespace thinwire {
namespace {

TEST(Target, CanBeForcedByName) {
  const auto all = kernel_targets();
  ASSERT_FALSE(all.empty());
  for (const std::string& name : all) {
    force_kernel_target(name);
    EXPECT_EQ(kernel_targets(), all);
  }
  force_kernel_target("");
  EXPECT_THROW(force_kernel_target("abacus"), Error);
}

}  // namespace
}  // namespace thinwire
