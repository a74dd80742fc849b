// launch.cuh: what every launcher of a CUDA kernel shares. Kernels walk over their elements in
// steps of the whole grid, so any grid is right for any count. Four elements at a time go through
// one access where the arrays are aligned for it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "thinwire/core/device.h"
#include "thinwire/core/error.h"

namespace thinwire {

inline constexpr unsigned block_threads = 256;

// Blocks for `items` pieces of work, one per thread: at most several rounds of any GPU.
inline unsigned blocks_for(std::size_t items, unsigned threads = block_threads) {
  constexpr std::size_t most = 8192;
  return static_cast<unsigned>(std::clamp<std::size_t>((items + threads - 1) / threads, 1, most));
}

// The blocks that a device runs at once, where a multiprocessor has `each`.
inline unsigned resident_blocks(unsigned each, Device device) {
  int count = 0;
  const cudaError_t error =
      cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device.index);
  if (error != cudaSuccess) fail("cuda: multiprocessors: ", cudaGetErrorString(error));
  return each * static_cast<unsigned>(count);
}

// Leaves what `blocks` blocks of a kernel do not need of a multiprocessor's memory to its cache,
// for kernels that read their bytes twice.
template <typename Kernel>
void prefer_cache(Kernel* kernel, std::size_t shared_bytes, unsigned blocks) {
  constexpr std::size_t all = 228 * 1024, reserved = 1024;  // of sm_90; elsewhere a hint
  const std::size_t percent = (100 * blocks * (shared_bytes + reserved) + all - 1) / all;
  cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                       cudaFuncAttributePreferredSharedMemoryCarveout,
                       static_cast<int>(std::min<std::size_t>(percent, 100)));
}

inline cudaStream_t handle_of(Stream stream) { return static_cast<cudaStream_t>(stream.handle); }

// After a launch: throws when it was refused.
inline void check_launch(const char* kernel) {
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) fail("cuda: launch of ", kernel, ": ", cudaGetErrorString(error));
}

// Whether kernels of this device can start while the one before still runs.
inline bool can_start_early() {
  int device = 0, major = 0;
  return cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
         major >= 9;
}

// Launches a kernel that may start before the previous one of its stream has ended: it calls
// await_previous() in every thread before it reads what that one wrote, or writes what it reads.
// Short kernels in a row then do not wait for each other's start.
// `shared`: bytes of shared memory beyond what the kernel declares.
template <typename... Parameters, typename... Arguments>
void launch_early_with(void (*kernel)(Parameters...), unsigned blocks, unsigned threads,
                       std::size_t shared, Stream stream, const Arguments&... arguments) {
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = blocks;
  config.blockDim = threads;
  config.dynamicSmemBytes = shared;
  config.stream = handle_of(stream);
  config.attrs = &early;
  config.numAttrs = can_start_early() ? 1 : 0;
  cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
}
template <typename... Parameters, typename... Arguments>
void launch_early(void (*kernel)(Parameters...), unsigned blocks, unsigned threads, Stream stream,
                  const Arguments&... arguments) {
  launch_early_with(kernel, blocks, threads, 0, stream, arguments...);
}

__device__ inline void await_previous() {
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
}

// The next kernel, if launched by launch_early(), may start when all blocks have called this.
__device__ inline void let_next_start() {
#if __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}

__device__ inline std::size_t thread_index() {
  return std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
}
__device__ inline std::size_t thread_count() { return std::size_t{gridDim.x} * blockDim.x; }

template <typename T>
struct alignas(4 * sizeof(T)) Four {
  T at[4];
};

// The number of leading fours that may be read and written as such: all, or none.
template <typename... T>
std::size_t whole_fours(std::size_t count, const T*... arrays) {
  const bool aligned = ((reinterpret_cast<std::uintptr_t>(arrays) % alignof(Four<T>) == 0) && ...);
  return aligned ? count / 4 : 0;
}

template <typename T>
__device__ Four<T> load_four(const T* x, std::size_t i) {
  return reinterpret_cast<const Four<T>*>(x)[i];
}
template <typename T>
__device__ void store_four(T* x, std::size_t i, const Four<T>& values) {
  reinterpret_cast<Four<T>*>(x)[i] = values;
}

// The same for an array that is written once: it does not push out of the cache what the next
// kernel needs.
template <typename T>
__device__ void store_four_once(T* x, std::size_t i, const Four<T>& values) {
  if constexpr (sizeof(values) == sizeof(uint4)) {
    __stcs(reinterpret_cast<uint4*>(x) + i, *reinterpret_cast<const uint4*>(&values));
  } else {
    __stcs(reinterpret_cast<uint2*>(x) + i, *reinterpret_cast<const uint2*>(&values));
  }
}

}  // namespace thinwire
