// coded_encode.cuh: the encoders of quantisers: they measure the x of a group, code them, and keep
// the rest, in one pass over device memory. Whole groups of a rule's usual size stay in the
// registers of a warp: lane l has the elements l, l + 32... Others are held in shared memory.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "thinwire/compress/coded.cuh"

namespace thinwire::coded {

// room[i] = x of element first + i, for a team. The momentum takes the gradient in.
template <unsigned size, typename E>
__device__ void take_in(const Feed<E>& feed, std::uint32_t first, std::uint32_t count,
                        float* room) {
  constexpr unsigned batch = 8;  // loads under way at once
  for (std::uint32_t base = team_thread<size>(); base < count; base += batch * size) {
    const auto each = [&](const auto& one) {
#pragma unroll
      for (unsigned k = 0; k < batch; ++k)
        if (base + k * size < count) one(k, first + base + k * size);
    };
    typename E::Stored g[batch];
    float u[batch], v[batch];
    if (feed.u == nullptr) {
      each([&](unsigned k, std::uint32_t i) {
        g[k] = feed.gradient[i];
        if (feed.v != nullptr) v[k] = feed.v[i];
      });
      each([&](unsigned k, std::uint32_t i) {
        const float fed = E::widen(g[k]);
        room[i - first] = feed.v == nullptr ? fed : taken_in(fed, v[k]);
      });
      continue;
    }
    // With three arrays conditions are outside of the loops.
    each([&](unsigned k, std::uint32_t i) { g[k] = feed.gradient[i]; });
    each([&](unsigned k, std::uint32_t i) { u[k] = feed.u[i]; });
    if (feed.v != nullptr) each([&](unsigned k, std::uint32_t i) { v[k] = feed.v[i]; });
    each([&](unsigned k, std::uint32_t i) {
      const float fed = feed.moved(E::widen(g[k]), u[k]);
      feed.u[i] = u[k];
      room[i - first] = feed.v == nullptr ? fed : taken_in(fed, v[k]);
    });
  }
}

// What take_in() does for a group of 32 * rows elements in registers. Conditions are outside of the
// loops, so that all loads are under way at once.
template <unsigned rows, typename E>
__device__ void take_in_rows(const Feed<E>& feed, std::uint32_t first, float* x) {
  const std::size_t mine = std::size_t{first} + threadIdx.x % warp;
  typename E::Stored g[rows];
  float u[rows], v[rows];
#pragma unroll
  for (unsigned j = 0; j < rows; ++j) g[j] = feed.gradient[mine + warp * j];
  if (feed.u != nullptr) {
#pragma unroll
    for (unsigned j = 0; j < rows; ++j) u[j] = feed.u[mine + warp * j];
  }
  if (feed.v != nullptr) {
#pragma unroll
    for (unsigned j = 0; j < rows; ++j) v[j] = feed.v[mine + warp * j];
  }
#pragma unroll
  for (unsigned j = 0; j < rows; ++j) x[j] = E::widen(g[j]);
  if (feed.u != nullptr) {
#pragma unroll
    for (unsigned j = 0; j < rows; ++j) {
      x[j] = feed.moved(x[j], u[j]);
      feed.u[mine + warp * j] = u[j];
    }
  }
  if (feed.v != nullptr) {
#pragma unroll
    for (unsigned j = 0; j < rows; ++j) x[j] = taken_in(x[j], v[j]);
  }
}

// The draws of a group. Lanes l and l + 16 share hashes: each computes half of them.
template <unsigned rows>
__device__ void draw_rows(DrawKey key, std::uint32_t first, std::uint32_t* draw) {
  const unsigned lane = threadIdx.x % warp, upper = lane / 16;
  const unsigned even = upper == 0 ? 0x3210 : 0x5476, odd = upper == 0 ? 0x7654 : 0x1032;
#pragma unroll
  for (unsigned j = 0; j < rows; j += 2) {
    const std::uint32_t mine = draw_hash(key, first / 2 + (j + upper) * 16 + lane % 16);
    const std::uint32_t other = __shfl_xor_sync(~0u, mine, 16);
    draw[j] = __byte_perm(mine, other, even);
    draw[j + 1] = __byte_perm(mine, other, odd);
  }
}

// Whether all x of a warp are finite: others times zero are not zero.
template <unsigned rows>
__device__ bool all_finite(const float* x) {
  float zero = 0;
#pragma unroll
  for (unsigned j = 0; j < rows; ++j) zero = __fmaf_rn(x[j], 0.0f, zero);
  return __all_sync(~0u, zero == 0);
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

// A word of 32 bits by one thread, to an address of any kind. `room` bytes are left.
__device__ inline void write_word(std::uint32_t word, std::uint8_t* at, std::uint32_t room) {
  if (room >= 4 && reinterpret_cast<std::uintptr_t>(at) % 4 == 0) {
    *reinterpret_cast<std::uint32_t*>(at) = word;
  } else {
    for (unsigned b = 0; b < 4 && b < room; ++b) at[b] = static_cast<std::uint8_t>(word >> 8 * b);
  }
}

template <typename E, typename Rule>
__global__ void __launch_bounds__(block_threads, Rule::rows > 8 ? 3 : 4)
    encode_rows(const Feed<E> feed, const Rule rule, const DrawKey key, std::uint8_t* payload,
                FrameState* frame, Verdict* verdict) {
  constexpr unsigned rows = Rule::rows;
  __shared__ typename Rule::Room rooms[block_threads / warp];
  auto& room = rooms[threadIdx.x / warp];
  const std::uint32_t groups = rule.elements / rule.group;
  bool sound = true;
  for (std::size_t k = thread_index() / warp; k < groups; k += thread_count() / warp) {
    const auto first = static_cast<std::uint32_t>(k) * rule.group;
    float x[rows];
    take_in_rows<rows>(feed, first, x);
    const auto scale = rule.measure_rows(x);
    if (scale.finite) {
      sound = rule.write_rows(x, first, scale, key, room, payload,
                              feed.v == nullptr ? nullptr : feed.v + first) &&
              sound;
    } else {
      rule.template refuse<warp>(first, rule.group, payload);
      keep_refused<warp>(feed, first, rule.group);
      sound = false;
    }
  }
  if (!sound) report_unsound(frame, verdict);
}

// Groups from `from` on, of any size.
template <typename E, unsigned size, typename Rule>
__global__ void __launch_bounds__(block_size<size>)
    encode_kernel(const Feed<E> feed, const Rule rule, const DrawKey key, std::uint8_t* payload,
                  std::uint32_t from, FrameState* frame, Verdict* verdict) {
  extern __shared__ float4 shared[];
  const unsigned team = threadIdx.x / size;
  constexpr unsigned teams = block_size<size> / size;
  auto* const room =
      reinterpret_cast<float*>(reinterpret_cast<std::byte*>(shared) + team * rule.room_bytes());
  const std::uint32_t groups = (rule.elements + rule.group - 1) / rule.group;
  for (std::uint32_t k = from + blockIdx.x * teams + team; k < groups; k += gridDim.x * teams) {
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

}  // namespace thinwire::coded
