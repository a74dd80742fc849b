// coded_decode.cuh: the average of the payloads of all ranks, added in rank order. Payloads of
// short groups are averaged in tiles of whole groups, 16 elements of a group per thread; the same
// blocks add up the checksums of the tiles' lines, so that payloads come from memory once.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "thinwire/compress/coded.cuh"
#include "thinwire/compress/frame_sums.cuh"

namespace thinwire::coded {

inline constexpr unsigned lane_elements = 16;
inline constexpr std::uint32_t tile_most = lane_elements * block_threads;

template <typename E>
__device__ Four<typename E::Stored> narrowed_four(const float* x, Verdict* verdict) {
  return {narrowed<E>(x[0], verdict), narrowed<E>(x[1], verdict), narrowed<E>(x[2], verdict),
          narrowed<E>(x[3], verdict)};
}

template <typename E, std::uint32_t step>
__device__ void store_average(const float* sum, std::uint32_t first, std::uint32_t count,
                              typename E::Stored* average, Verdict* verdict) {
  using Type = typename E::Stored;
  const bool aligned = reinterpret_cast<std::uintptr_t>(average) % alignof(Four<Type>) == 0;
#pragma unroll
  for (std::uint32_t i = 0; i < step; i += 4) {
    if (aligned && i + 4 <= count) {
      store_four_once(average, (std::size_t{first} + i) / 4, narrowed_four<E>(sum + i, verdict));
    } else {
#pragma unroll
      for (std::uint32_t j = i; j < i + 4; ++j)
        if (j < count) average[std::size_t{first} + j] = narrowed<E>(sum[j], verdict);
    }
  }
}

// The averages of a warp, 16 neighbours per lane, to average[0, count). They change lanes, so that
// lanes write sectors and not their halves. `room` is the warp's.
inline constexpr unsigned warp_room = 2 * warp;  // of float4

template <typename E>
__device__ void store_sixteen(const float* sum, std::uint32_t count, float4* room,
                              typename E::Stored* average, Verdict* verdict) {
  using Type = typename E::Stored;
  const bool aligned = reinterpret_cast<std::uintptr_t>(average) % alignof(Four<Type>) == 0;
  const unsigned lane = threadIdx.x % warp;
  // Lanes 4 to 7 of each 8 swap their two places, else they would meet lanes 0 to 3 in the banks.
  const auto place = [](unsigned of, unsigned quad) { return 2 * of + (quad ^ (of >> 2 & 1)); };
#pragma unroll
  for (unsigned half = 0; half < 2; ++half) {
    __syncwarp();
#pragma unroll
    for (unsigned quad = 0; quad < 2; ++quad) {
      const float* const from = sum + 8 * half + 4 * quad;
      room[place(lane, quad)] = {from[0], from[1], from[2], from[3]};
    }
    __syncwarp();
#pragma unroll
    for (unsigned turn = 0; turn < 2; ++turn) {
      const unsigned of = 16 * turn + lane / 2, quad = lane % 2;
      const std::uint32_t i = lane_elements * of + 8 * half + 4 * quad;
      const float4 four = room[place(of, quad)];
      const float values[4] = {four.x, four.y, four.z, four.w};
      if (i >= count) continue;
      if (aligned) {
        store_four_once(average, i / 4, narrowed_four<E>(values, verdict));
      } else {
        for (unsigned k = 0; k < 4; ++k) average[i + k] = narrowed<E>(values[k], verdict);
      }
    }
  }
}

// Element by element, `step` at a time: payloads of long groups, and the end of others.
template <typename E, typename Rule>
__device__ std::uint32_t average_steps(const BlockPayloads& in, const Rule& rule,
                                       std::uint32_t from, std::size_t thread, std::size_t threads,
                                       float share, typename E::Stored* average) {
  constexpr std::uint32_t step = Rule::step;
  std::uint32_t worst = ~0u;
  for (std::size_t k = thread; from + k * step < rule.elements; k += threads) {
    const auto first = static_cast<std::uint32_t>(from + k * step);
    const std::uint32_t count = min(step, rule.elements - first);
    const auto place = rule.place(first, count);
    float sum[step] = {};
#pragma unroll 4
    for (std::uint32_t rank = 0; rank < in.ranks; ++rank) {
      const std::uint8_t* const payload = block_frame::payload_of(in, rank);
      if (!rule.add(payload, place, count, share, sum)) worst = min(worst, rank);
    }
    store_average<E, step>(sum, first, count, average, in.verdict);
  }
  return worst;
}

template <typename E, typename Rule>
__global__ void __launch_bounds__(block_threads)
    average_kernel(const BlockPayloads in, const Rule rule, float share,
                   typename E::Stored* average) {
  const Verdict verdict = *in.verdict;
  if (verdict.void_step() || verdict.unsound != 0) return;
  const std::uint32_t worst =
      average_steps<E>(in, rule, 0, thread_index(), thread_count(), share, average);
  if (worst != ~0u) block_frame::accuse(in.verdict, Code::bad_value, worst, in.bucket);
}

// What average_tiles() has of shared memory.
inline constexpr std::size_t tiles_shared_bytes =
    sizeof(block_frame::SumTables) + block_threads / warp * warp_room * sizeof(float4);

template <typename E, typename Rule>
__global__ void __launch_bounds__(block_threads, 3)
    average_tiles(const BlockPayloads in, const Rule rule, std::uint32_t tile,
                  const block_frame::SumPlan plan, float share, typename E::Stored* average) {
  __shared__ block_frame::SumTables tables;
  __shared__ float4 rooms[block_threads / warp][warp_room];
  block_frame::LineSums sums(tables, plan);
  await_previous();
  if (!block_frame::may_average(in)) return;
  const block_frame::AllFrames frames{in, plan.payload};
  const std::uint32_t full = rule.elements / tile, inside = lane_elements * threadIdx.x;
  const std::uint32_t warp_first = lane_elements * (threadIdx.x / warp * warp);
  std::uint32_t worst = ~0u, k = blockIdx.x;
  for (; k < plan.tiles; k += gridDim.x) {
    sums.add(frames, k);
    const std::uint32_t first = k * tile;
    if (k < full) {
      float sum[lane_elements] = {};
      if (inside < tile) {
        const auto place = rule.place(first + inside, lane_elements);
#pragma unroll 2
        for (std::uint32_t rank = 0; rank < in.ranks; ++rank)
          if (!rule.add_sixteen(block_frame::payload_of(in, rank), place, share, sum))
            worst = min(worst, rank);
      }
      if (warp_first < tile)
        store_sixteen<E>(sum, tile - warp_first, rooms[threadIdx.x / warp],
                         average + std::size_t{first} + warp_first, in.verdict);
    } else if (k == full) {
      worst =
          min(worst, average_steps<E>(in, rule, first, threadIdx.x, block_threads, share, average));
    }
  }
  sums.finish(&in.check->found);
  if (worst != ~0u) in.opened[worst].bad_value = in.check->bad_value = 1;
  block_frame::compare_sums(in);
}

}  // namespace thinwire::coded
