// half_test.cu: the GPU's conversions of halves against core/half.h: all floats, all halves.
// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda/device.h"
#include "thinwire/core/launch.cuh"

namespace thinwire {
namespace {

using HalfOnDevice = OnDevice;
using F16 = Element<DType::f16>;
using Bf16 = Element<DType::bf16>;

// Counts the floats that an instruction narrows otherwise than half.h.
__global__ void narrow_all_kernel(unsigned long long* wrong) {
  for (std::size_t i = thread_index(); i < std::size_t{1} << 32; i += thread_count()) {
    const auto x = std::bit_cast<float>(static_cast<std::uint32_t>(i));
    if (F16::narrow(x) != to_f16(x)) atomicAdd(wrong, 1ull);
    if (Bf16::narrow(x) != to_bf16(x)) atomicAdd(wrong + 1, 1ull);
  }
}

__global__ void narrow_kernel(const float* x, std::size_t count, std::uint16_t* f16,
                              std::uint16_t* bf16) {
  for (std::size_t i = thread_index(); i < count; i += thread_count()) {
    f16[i] = F16::narrow(x[i]);
    bf16[i] = Bf16::narrow(x[i]);
  }
}

__global__ void widen_kernel(const std::uint16_t* x, std::size_t count, float* f16, float* bf16) {
  for (std::size_t i = thread_index(); i < count; i += thread_count()) {
    f16[i] = F16::widen(x[i]);
    bf16[i] = Bf16::widen(x[i]);
  }
}

TEST_F(HalfOnDevice, AllFloatsAreNarrowedAsByHalfH) {
  const OnGpu<unsigned long long> wrong({0, 0});
  narrow_all_kernel<<<blocks_for(std::size_t{1} << 32), block_threads, 0, handle_of(stream)>>>(
      wrong.data());
  check_launch("narrow_all");
  EXPECT_EQ(wrong.download(stream), (std::vector<unsigned long long>{0, 0}));
}

// ... and half.h on the GPU is half.h on the CPU: at the borders of rounding, and anywhere.
TEST_F(HalfOnDevice, FloatsAreNarrowedAsOnTheCpu) {
  std::vector<float> x = wild_floats(1 << 20, 1);
  for (std::uint32_t half = 0; half < 65536; ++half) {
    for (const float value : {from_f16(static_cast<std::uint16_t>(half)),
                              from_bf16(static_cast<std::uint16_t>(half))}) {
      const auto bits = std::bit_cast<std::uint32_t>(value);
      for (const std::uint32_t step : {0u, 0xfffu, 0x1000u, 0x1001u, 0x7fffu, 0x8000u, 0x8001u})
        x.push_back(std::bit_cast<float>(bits + step));
    }
  }
  const OnGpu<float> in(x);
  const OnGpu<std::uint16_t> f16(std::vector<std::uint16_t>(x.size())),
      bf16(std::vector<std::uint16_t>(x.size()));
  narrow_kernel<<<blocks_for(x.size()), block_threads, 0, handle_of(stream)>>>(
      in.data(), x.size(), f16.data(), bf16.data());
  check_launch("narrow");
  const auto got_f16 = f16.download(stream), got_bf16 = bf16.download(stream);
  for (std::size_t i = 0; i < x.size(); ++i) {
    ASSERT_EQ(got_f16[i], to_f16(x[i])) << x[i];
    ASSERT_EQ(got_bf16[i], to_bf16(x[i])) << x[i];
  }
}

TEST_F(HalfOnDevice, AllHalvesAreWidenedAsOnTheCpu) {
  std::vector<std::uint16_t> x(65536);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<std::uint16_t>(i);
  const OnGpu<std::uint16_t> in(x);
  const OnGpu<float> f16(std::vector<float>(x.size())), bf16(std::vector<float>(x.size()));
  widen_kernel<<<blocks_for(x.size()), block_threads, 0, handle_of(stream)>>>(
      in.data(), x.size(), f16.data(), bf16.data());
  check_launch("widen");
  const auto got_f16 = f16.download(stream), got_bf16 = bf16.download(stream);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const float a = from_f16(x[i]), b = from_bf16(x[i]);
    if (std::isnan(a)) {
      ASSERT_TRUE(std::isnan(got_f16[i])) << i;
    } else {
      ASSERT_EQ(std::bit_cast<std::uint32_t>(got_f16[i]), std::bit_cast<std::uint32_t>(a)) << i;
    }
    ASSERT_EQ(std::bit_cast<std::uint32_t>(got_bf16[i]), std::bit_cast<std::uint32_t>(b)) << i;
  }
}

}  // namespace
}  // namespace thinwire
