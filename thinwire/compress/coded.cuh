// coded.cuh: the kernels around the rules of a quantiser. Its elements form groups that share a
// scale. A team of threads (a warp, or a block for long groups) holds the x of a group in shared
// memory: it measures them, codes them, and keeps the rest, in one pass over device memory.
//
// A rule for groups of a fixed size is a struct that kernels take by value:
//
//     elements, group, room_bytes(size)   its numbers; bytes of shared memory per team
//     measure<size>(x, count)             the scale of a group, in all threads; scale.finite
//     write<size>(...)                    the group's bytes and rests; false: an x is not finite
//     refuse<size>(...)                   zeros in their place, where scale.finite is false
//     step, place(i), add(...)            decoding: `step` elements per thread
//     value(payload, i)                   one decoded element
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "thinwire/compress/codec_cuda.h"
#include "thinwire/compress/frames.cuh"
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

// room[i] = x of element first + i, for a team. The momentum takes the gradient in.
template <unsigned size, typename E>
__device__ void take_in(const Feed<E>& feed, std::uint32_t first, std::uint32_t count,
                        float* room) {
  constexpr unsigned batch = 8;  // loads under way at once
  for (std::uint32_t base = team_thread<size>(); base < count; base += batch * size) {
    typename E::Stored g[batch];
    float u[batch], v[batch];
#pragma unroll
    for (unsigned k = 0; k < batch; ++k) {
      const std::uint32_t i = base + k * size;
      if (i >= count) continue;
      g[k] = feed.gradient[first + i];
      if (feed.u != nullptr) u[k] = feed.u[first + i];
      if (feed.v != nullptr) v[k] = feed.v[first + i];
    }
#pragma unroll
    for (unsigned k = 0; k < batch; ++k) {
      const std::uint32_t i = base + k * size;
      if (i >= count) continue;
      float fed = E::widen(g[k]);
      if (feed.u != nullptr) {
        const float now = feed.nesterov ? feed.momentum * (u[k] + fed) : feed.momentum * u[k] + fed;
        feed.u[first + i] = now;
        fed = feed.nesterov ? now + fed : now;
      }
      room[i] = feed.v == nullptr ? fed : taken_in(fed, v[k]);
    }
  }
}

// A group that was refused: the residual takes in what is within the limit.
template <unsigned size, typename E>
__device__ void keep_refused(const Feed<E>& feed, std::uint32_t first, std::uint32_t count) {
  if (feed.v == nullptr) return;
  for (std::uint32_t i = first + team_thread<size>(); i < first + count; i += size) {
    const float fed = feed.again(i);
    if (within_limit(fed)) feed.v[i] += fed;
  }
}

// A bit per element of a row of 32: the first four lanes of a warp write the bytes of its word.
// `room` is what is left of the bits' bytes.
__device__ inline void write_row(std::uint32_t word, std::uint8_t* at, std::uint32_t room) {
  const unsigned lane = threadIdx.x % warp;
  if (lane < 4 && lane < room) at[lane] = static_cast<std::uint8_t>(word >> 8 * lane);
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

template <typename E, unsigned size, typename Rule>
__global__ void __launch_bounds__(block_size<size>)
    encode_kernel(const Feed<E> feed, const Rule rule, const DrawKey key, std::uint8_t* payload,
                  FrameState* frame, Verdict* verdict) {
  extern __shared__ float4 shared[];
  const unsigned team = threadIdx.x / size;
  constexpr unsigned teams = block_size<size> / size;
  auto* const room =
      reinterpret_cast<float*>(reinterpret_cast<std::byte*>(shared) + team * rule.room_bytes());
  const std::uint32_t groups = (rule.elements + rule.group - 1) / rule.group;
  for (std::uint32_t k = blockIdx.x * teams + team; k < groups; k += gridDim.x * teams) {
    const std::uint32_t first = k * rule.group, count = min(rule.group, rule.elements - first);
    take_in<size>(feed, first, count, room);
    team_sync<size>();
    const auto scale = rule.template measure<size>(room, count);
    bool sound = scale.finite;
    if (sound) {
      sound = rule.template write<size>(room, first, count, scale, key, payload,
                                        feed.v == nullptr ? nullptr : feed.v + first);
    } else {
      rule.template refuse<size>(first, count, payload);
      keep_refused<size>(feed, first, count);
    }
    if (!sound) report_unsound(frame, verdict);
    team_sync<size>();
  }
}

template <typename E, typename Rule>
__global__ void __launch_bounds__(block_threads)
    average_kernel(const BlockPayloads in, const Rule rule, float share,
                   typename E::Stored* average) {
  constexpr std::uint32_t step = Rule::step;
  const Verdict verdict = *in.verdict;
  if (verdict.void_step() || verdict.unsound != 0) return;
  std::uint32_t worst = ~0u;
  for (std::size_t k = thread_index(); k * step < rule.elements; k += thread_count()) {
    const auto first = static_cast<std::uint32_t>(k * step);
    const std::uint32_t count = min(step, rule.elements - first);
    const auto place = rule.place(first, count);
    float sum[step] = {};
#pragma unroll 4
    for (std::uint32_t rank = 0; rank < in.ranks; ++rank)
      if (!rule.add(block_frame::payload_of(in, rank), place, count, share, sum))
        worst = min(worst, rank);
    const bool aligned =
        reinterpret_cast<std::uintptr_t>(average) % alignof(Four<typename E::Stored>) == 0;
#pragma unroll
    for (std::uint32_t i = 0; i < step; i += 4) {
      if (aligned && i + 4 <= count) {
        store_four_once(average, (first + i) / 4,
                        Four<typename E::Stored>{E::narrow(sum[i]), E::narrow(sum[i + 1]),
                                                 E::narrow(sum[i + 2]), E::narrow(sum[i + 3])});
      } else {
#pragma unroll
        for (std::uint32_t j = i; j < i + 4; ++j)
          if (j < count) average[first + j] = E::narrow(sum[j]);
      }
    }
  }
  if (worst != ~0u) block_frame::accuse(in.verdict, Code::bad_value, worst, in.bucket);
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
      feed.v[i] = forget ? taken_out(Accumulate::residual, feed.again(i), sent, 0, feed.v[i])
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
  if (bytes <= 48 * 1024) return;  // more than every kernel has without asking
  const cudaError_t error = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  if (error != cudaSuccess) fail("cuda: shared memory: ", cudaGetErrorString(error));
}

template <typename Rule>
void average_with(const Rule& rule, const BlockPayloads& in, float share, const TensorView& average,
                  Stream stream, const char* name) {
  if (average.count == 0) return;
  with_element(average.dtype, name, [&](auto element) {
    using E = decltype(element);
    const std::size_t pieces = (average.count + Rule::step - 1) / Rule::step;
    average_kernel<E><<<blocks_for(pieces), block_threads, 0, handle_of(stream)>>>(
        in, rule, share, static_cast<typename E::Stored*>(average.data));
  });
  check_launch(name);
}

template <typename Rule>
void conclude_with(const Rule& rule, const CodedStep& step, float fill, const char* name) {
  if (step.gradient.count == 0) return;
  with_element(step.gradient.dtype, name, [&](auto element) {
    using E = decltype(element);
    // Usually it has nothing to do.
    const unsigned blocks = std::min(1024u, blocks_for(step.gradient.count));
    conclude_kernel<E><<<blocks, block_threads, 0, handle_of(step.stream)>>>(
        feed_of<E>(step), rule, step.payload, static_cast<typename E::Stored*>(step.gradient.data),
        step.gradient.count, fill, step.verdict);
  });
  check_launch(name);
}

// The codec of a rule with groups of a fixed size.
template <typename Rule>
class GroupCodec final : public CudaCodec {
 public:
  GroupCodec(const char* name, const Rule& rule, std::size_t payload_bytes)
      : name_(name), rule_(rule), bytes_(payload_bytes) {}

  BlockRule payload_rule() const override { return {bytes_, true, Code::truncated}; }

  void encode(const CodedStep& step) override {
    if (step.gradient.count == 0) return;
    with_element(step.gradient.dtype, name_, [&](auto element) {
      using E = decltype(element);
      if (rule_.group <= warp_group) {
        launch<E, warp>(step);
      } else {
        launch<E, wide>(step);
      }
    });
    check_launch(name_);
  }

  void average(const BlockPayloads& payloads, float share, TensorView average,
               Stream stream) override {
    average_with(rule_, payloads, share, average, stream, name_);
  }

  void conclude(const CodedStep& step, float fill) override {
    conclude_with(rule_, step, fill, name_);
  }

 private:
  template <typename E, unsigned size>
  void launch(const CodedStep& step) const {
    constexpr unsigned teams = block_size<size> / size;
    const std::size_t groups = (rule_.elements + rule_.group - 1) / rule_.group;
    const std::size_t shared = teams * rule_.room_bytes();
    const auto kernel = encode_kernel<E, size, Rule>;
    allow_shared_memory(kernel, shared);
    kernel<<<blocks_for(groups, teams), block_size<size>, shared, handle_of(step.stream)>>>(
        feed_of<E>(step), rule_, step.key, step.payload, step.frame, step.verdict);
  }

  const char* name_;
  Rule rule_;
  std::size_t bytes_;
};

}  // namespace thinwire::coded
