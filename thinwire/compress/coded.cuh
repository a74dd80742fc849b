// coded.cuh: what the kernels of quantisers share. Elements form groups that share a scale; a team
// of threads (a warp, or a block for long groups) handles a group. coded_encode.cuh measures and
// codes, coded_decode.cuh averages, group_codec.cuh is the codec of a rule.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "thinwire/compress/codec_cuda.h"
#include "thinwire/core/element.h"
#include "thinwire/core/launch.cuh"

namespace thinwire::coded {

inline constexpr unsigned warp = 32, wide = 512;   // the sizes of teams
inline constexpr std::uint32_t warp_group = 1024;  // longest group for a warp

template <unsigned size>
constexpr unsigned block_size = size == warp ? block_threads : size;

template <unsigned size>
__device__ unsigned team_thread() {
  return threadIdx.x % size;
}
template <unsigned size>
__device__ void team_sync() {
  if constexpr (size == warp) {
    __syncwarp();
  } else {
    __syncthreads();
  }
}

// combine(combine(a, b), c)... over the team, in any order, in every thread.
template <unsigned size, typename T, typename Combine>
__device__ T team_combine(T mine, const Combine& combine) {
  for (unsigned step = 16; step > 0; step /= 2)
    mine = combine(mine, __shfl_xor_sync(~0u, mine, step));
  if constexpr (size > warp) {
    __shared__ T parts[size / warp];
    if (threadIdx.x % warp == 0) parts[threadIdx.x / warp] = mine;
    __syncthreads();
    mine = parts[0];
    for (unsigned k = 1; k < size / warp; ++k) mine = combine(mine, parts[k]);
    __syncthreads();
  }
  return mine;
}

// The value of the team's first thread, in every thread.
template <unsigned size, typename T>
__device__ T team_first(T mine) {
  if constexpr (size == warp) {
    return __shfl_sync(~0u, mine, 0);
  } else {
    __shared__ T first;
    if (threadIdx.x == 0) first = mine;
    __syncthreads();
    const T value = first;
    __syncthreads();
    return value;
  }
}

// The gradient of a bucket and its memory.
template <typename E>
struct Feed {
  const typename E::Stored* gradient;
  float *u, *v;
  float momentum;
  bool nesterov;

  // The codec's input without the residual; u takes the gradient in.
  __device__ float moved(float g, float& u) const {
    u = nesterov ? momentum * (u + g) : momentum * u + g;
    return nesterov ? u + g : u;
  }
  // The codec's input without the residual, once the momentum contains this step.
  __device__ float again(std::uint32_t i) const {
    const float g = E::widen(gradient[i]);
    return u == nullptr ? g : nesterov ? u[i] + g : u[i];
  }
  __device__ float x_again(std::uint32_t i) const {
    return v == nullptr ? again(i) : taken_in(again(i), v[i]);
  }
};

template <typename E>
Feed<E> feed_of(const CodedStep& step) {
  return {static_cast<const typename E::Stored*>(step.gradient.data), step.u, step.v,
          step.rule.momentum, step.rule.accumulate == Accumulate::nesterov};
}

// Up to 8 bytes from any address. Reads only words that contain some of them.
__device__ inline std::uint64_t load_bytes(const std::uint8_t* at, unsigned count) {
  const auto address = reinterpret_cast<std::uintptr_t>(at);
  const auto* const words = reinterpret_cast<const std::uint32_t*>(address & ~std::uintptr_t{3});
  const auto skew = static_cast<unsigned>(address & 3);
  const unsigned spanned = (skew + count + 3) / 4;
  std::uint64_t value = words[0];
  if (spanned > 1) value |= std::uint64_t{words[1]} << 32;
  value >>= 8 * skew;
  if (spanned > 2) value |= std::uint64_t{words[2]} << (64 - 8 * skew);
  return count < 8 ? value & ((std::uint64_t{1} << 8 * count) - 1) : value;
}

__device__ inline void report_unsound(FrameState* frame, Verdict* verdict) {
  frame->unsound = 1;
  verdict->unsound = 1;
}

// An average as an element. A finite one may be infinite as a half: then all ranks skip the step.
template <typename E>
__device__ typename E::Stored narrowed(float x, Verdict* verdict) {
  const typename E::Stored element = E::narrow(x);
  if (sizeof element < sizeof(float) && !is_finite(E::widen(element))) verdict->skipped = 1;
  return element;
}

// Takes a void step back, as CodedCompressor::undo() and forget() do.
template <typename E, typename Rule>
__global__ void __launch_bounds__(block_threads)
    conclude_kernel(const Feed<E> feed, const Rule rule, const std::uint8_t* payload,
                    typename E::Stored* gradient, std::size_t count, float fill,
                    const Verdict* verdict) {
  if (!verdict->void_step()) return;
  const bool forget = verdict->unsound != 0;
  for (std::size_t k = thread_index(); k < count; k += thread_count()) {
    const auto i = static_cast<std::uint32_t>(k);
    if (feed.v != nullptr) {
      const float sent = 0.0f + rule.value(payload, i);  // a decoder adds to zeros: never -0
      feed.v[i] = forget ? taken_out({Accumulate::residual}, feed.again(i), sent, {0, feed.v[i]}).v
                         : feed.v[i] + sent;
    }
    if (feed.u != nullptr && forget) feed.u[i] = 0;
    gradient[i] = E::narrow(fill);
  }
}

// An array of kernels' constants, copied to the device once.
template <typename T>
Buffer uploaded(const std::vector<T>& values, Device device) {
  Buffer buffer(Place::cuda, values.size() * sizeof(T), device);
  copy_bytes(buffer.data(), values.data(), buffer.size(), {});
  synchronize({});
  return buffer;
}

template <typename Kernel>
void allow_shared_memory(Kernel kernel, std::size_t bytes) {
  // Every kernel has 48 KiB without asking, of which arrays of its own take some.
  if (bytes <= 40 * 1024) return;
  const cudaError_t error = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  if (error != cudaSuccess) fail("cuda: shared memory: ", cudaGetErrorString(error));
}

template <typename Rule>
void conclude_with(const Rule& rule, const CodedStep& step, float fill, const char* name) {
  if (step.gradient.count == 0) return;
  with_element(step.gradient.dtype, name, [&](auto element) {
    using E = decltype(element);
    // Usually it has nothing to do.
    const unsigned blocks = std::min(1024u, blocks_for(step.gradient.count));
    conclude_kernel<E, Rule><<<blocks, block_threads, 0, handle_of(step.stream)>>>(
        feed_of<E>(step), rule, step.payload, static_cast<typename E::Stored*>(step.gradient.data),
        step.gradient.count, fill, step.verdict);
  });
  check_launch(name);
}

}  // namespace thinwire::coded
