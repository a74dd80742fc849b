// buffer_test.cc: device memory, copies and events.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/core/buffer.h"

#include <numeric>

#include "tests/cuda/device.h"

namespace thinwire {
namespace {

using BufferOnDevice = OnDevice;

TEST_F(BufferOnDevice, IsZeroedAndCopiesBothWays) {
  const Buffer buffer(Place::cuda, 1001, gpu);
  std::vector<std::uint8_t> values(1001, 7);
  copy_bytes(values.data(), buffer.data(), values.size(), stream);
  synchronize(stream);
  EXPECT_EQ(values, std::vector<std::uint8_t>(1001));
  std::iota(values.begin(), values.end(), std::uint8_t{0});
  EXPECT_EQ(OnGpu(values).download(stream), values);
  EXPECT_EQ(OnGpu(values, 3).download(stream), values);
}

TEST_F(BufferOnDevice, EventOrdersTwoStreams) {
  const Buffer device(Place::cuda, 1 << 24, gpu), host(Place::pinned, 1 << 24);
  Event event(gpu);
  zero_bytes(device.data(), device.size(), stream);
  event.record(stream);
  event.hold_back({});
  copy_bytes(host.data(), device.data(), device.size(), {});
  event.record({});
  event.wait();
  EXPECT_TRUE(event.done());
}

}  // namespace
}  // namespace thinwire
