// buffer_test.cc: device memory, copies and events.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/core/buffer.h"

#include <cuda.h>

#include <numeric>
#include <thread>

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

// A thread that has used no device: what a scope needs, it brings, and it leaves nothing behind. On
// a machine with several GPUs the first would otherwise get a context of every rank.
TEST_F(BufferOnDevice, AScopeLeavesNoDeviceBehind) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
#if CUDART_VERSION >= 12050
  cudaGetDriverEntryPointByVersion("cuCtxGetCurrent", &found, 12000, cudaEnableDefault, &result);
#else
  cudaGetDriverEntryPoint("cuCtxGetCurrent", &found, cudaEnableDefault, &result);
#endif
  ASSERT_NE(found, nullptr);
  const auto current = [found] {
    CUcontext context{};
    reinterpret_cast<CUresult (*)(CUcontext*)>(found)(&context);
    return context;
  };
  std::thread([&] {
    EXPECT_EQ(current(), nullptr);
    std::vector<std::uint8_t> values(1001, 7);
    {
      const Buffer memory(Place::cuda, values.size(), gpu);
      const Buffer pinned(Place::pinned, values.size(), gpu);
      const OwnStream own(gpu);
      Event event(gpu);
      EXPECT_EQ(current(), nullptr);
      const DeviceScope scope(gpu);
      int device = -1;
      EXPECT_EQ(cudaGetDevice(&device), cudaSuccess);
      EXPECT_EQ(device, gpu.index);
      own.zero(memory.data(), memory.size());
      own.copy(pinned.data(), memory.data(), memory.size());
      event.record(own.get());
      event.wait();
      std::copy_n(pinned.as<std::uint8_t>(), values.size(), values.data());
    }
    EXPECT_EQ(values, std::vector<std::uint8_t>(1001));
    EXPECT_EQ(current(), nullptr);
  }).join();
}

}  // namespace
}  // namespace thinwire
