// buffer_test.cc: memory that knows its device, on machines without a GPU.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/core/buffer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

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
  const Device gpu{Device::Kind::cuda, 0};
  EXPECT_THROW(Event{gpu}, Error);
  EXPECT_THROW(OwnStream{gpu}, Error);
  EXPECT_THROW(DeviceScope{gpu}, Error);
}

TEST(OwnStream, OnTheCpuWorkIsDoneAtOnce) {
  const DeviceScope scope{Device{}};
  const OwnStream stream{Device{}};
  EXPECT_EQ(stream.get().handle, nullptr);
  Event event{Device{}};
  std::vector<int> from = {1, 2, 3}, to(3);
  stream.copy(to.data(), from.data(), 3 * sizeof(int));
  event.record(stream.get());
  EXPECT_TRUE(event.done());
  EXPECT_EQ(to, from);
  stream.zero(to.data(), 2 * sizeof(int));
  EXPECT_EQ(to, (std::vector<int>{0, 0, 3}));
  stream.copy(nullptr, nullptr, 0);
  stream.wait();
}

}  // namespace
}  // namespace thinwire
