// buffer_test.cc: memory that knows its device, on machines without a GPU.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/core/buffer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "thinwire/core/error.h"

namespace thinwire {
namespace {

TEST(Buffer, HostMemoryIsZeroedAndAligned) {
  const Buffer buffer(Place::host, 1001);
  ASSERT_EQ(buffer.size(), 1001u);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % 64, 0u);
  EXPECT_TRUE(std::all_of(buffer.data(), buffer.data() + buffer.size(),
                          [](std::byte b) { return b == std::byte{0}; }));
}

TEST(Buffer, MovesItsMemory) {
  Buffer from(Place::host, 64);
  std::byte* const at = from.data();
  const Buffer to = std::move(from);
  EXPECT_EQ(to.data(), at);
  EXPECT_EQ(to.size(), 64u);
  EXPECT_EQ(Buffer().data(), nullptr);
}

TEST(Buffer, SaysThatTheBuildHasNoCuda) {
  if (has_cuda()) GTEST_SKIP() << "this machine has a GPU";
  EXPECT_THROW(Buffer(Place::cuda, 64), Error);
  EXPECT_THROW(Event(Device{}), Error);
}

}  // namespace
}  // namespace thinwire
