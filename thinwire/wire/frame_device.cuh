// frame_device.cuh: what the kernels that write and that read frames share: bits in words, and the
// checksum of a frame by the threads of a block.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>

#include "thinwire/core/crc32c_rule.h"
#include "thinwire/core/element.h"
#include "thinwire/core/launch.cuh"
#include "thinwire/wire/frame_cuda.h"

namespace thinwire::frame_device {

inline constexpr int threads = 256;
inline constexpr std::uint32_t crc_offset = 16;

// A frame's header, as kernels take it: all bytes but the checksum, with the skipped flag off.
struct HeaderBytes {
  std::uint32_t words[4];
};

struct Layout {
  HeaderBytes header;
  std::uint32_t elements, chunks;
  std::uint8_t chunk_log2;
  ValueCoder values;
};

__host__ __device__ inline std::uint32_t chunk_extent(const Layout& layout, std::uint32_t chunk) {
  const std::uint64_t first = std::uint64_t{chunk} << layout.chunk_log2;
  const std::uint64_t extent = std::uint64_t{1} << layout.chunk_log2;
  const std::uint64_t left = layout.elements - first;
  return static_cast<std::uint32_t>(left < extent ? left : extent);
}

inline Layout layout_of(const FrameHeader& header) {
  Layout layout{};
  std::byte bytes[frame_header_bytes] = {};
  FrameHeader plain = header;
  plain.skipped = false;
  write_frame_header(plain, bytes);
  __builtin_memcpy(layout.header.words, bytes, sizeof layout.header.words);
  layout.elements = header.elements;
  layout.chunks = static_cast<std::uint32_t>(frame_chunks(header));
  layout.chunk_log2 = header.chunk_log2;
  layout.values = header.values;
  return layout;
}

// The sum over the block, in every thread.
template <typename T>
__device__ T block_sum(T mine) {
  using Reduce = cub::BlockReduce<T, threads>;
  __shared__ typename Reduce::TempStorage storage;
  __shared__ T result;
  const T sum = Reduce(storage).Sum(mine);
  if (threadIdx.x == 0) result = sum;
  __syncthreads();
  const T all = result;
  __syncthreads();
  return all;
}

template <typename T, typename Combine>
__device__ T block_combine(T mine, const Combine& combine) {
  using Reduce = cub::BlockReduce<T, threads>;
  __shared__ typename Reduce::TempStorage storage;
  __shared__ T result;
  const T one = Reduce(storage).Reduce(mine, combine);
  if (threadIdx.x == 0) result = one;
  __syncthreads();
  const T all = result;
  __syncthreads();
  return all;
}

// The sum of the threads before this one, and of all.
template <typename T>
__device__ T block_before(T mine, T& all) {
  using Scan = cub::BlockScan<T, threads>;
  __shared__ typename Scan::TempStorage storage;
  T before{};
  Scan(storage).ExclusiveSum(mine, before, all);
  __syncthreads();
  return before;
}

// Sets bits of words that are zero. Bits of other threads in the same words stay.
__device__ inline void or_bits(std::uint32_t* words, std::uint64_t position, std::uint64_t value,
                               unsigned count) {
  std::uint32_t* at = words + (position >> 5);
  const unsigned shift = position & 31;
  const auto low = static_cast<std::uint32_t>(value << shift);
  if (low != 0) atomicOr(at, low);
  if (shift + count > 32) {
    const auto middle = static_cast<std::uint32_t>(value << shift >> 32);
    if (middle != 0) atomicOr(at + 1, middle);
  }
  if (shift + count > 64) {
    const auto high = static_cast<std::uint32_t>(value >> (64 - shift));
    if (high != 0) atomicOr(at + 2, high);
  }
}

__device__ inline std::uint32_t byte_at(const std::uint32_t* words, std::uint64_t byte) {
  return words[byte >> 2] >> (8 * (byte & 3)) & 0xffu;
}

static __constant__ const Crc32cPowers powers = crc32c_powers();

// The checksum of a frame of `bytes` bytes, in every thread.
__device__ inline std::uint32_t checksum(const std::uint32_t* words, std::uint64_t bytes) {
  __shared__ std::uint32_t table[256];
  for (int i = static_cast<int>(threadIdx.x); i < 256; i += threads)
    table[i] = crc32c_entry(static_cast<std::uint32_t>(i));
  __syncthreads();
  // The header's 16 bytes, and the payload behind the checksum in pieces of whole words.
  const std::uint64_t payload = bytes - frame_header_bytes;
  const std::uint64_t each = (payload / threads + 4) / 4 * 4;
  const std::uint64_t from = min(payload, each * threadIdx.x), to = min(payload, from + each);
  const auto piece = [&](std::uint64_t first, std::uint64_t end) {
    std::uint32_t crc = ~0u;
    for (std::uint64_t i = first; i < end;) {
      std::uint32_t word = words[i >> 2];
      const std::uint64_t stop = min(end, i + 4);
      for (; i < stop; ++i, word >>= 8) crc = crc >> 8 ^ table[(crc ^ word) & 0xffu];
    }
    return ~crc;
  };
  std::uint32_t mine = 0;
  if (from < to) {
    mine = crc32c_shift(piece(frame_header_bytes + from, frame_header_bytes + to), payload - to,
                        powers);
  }
  if (threadIdx.x == 0) mine ^= crc32c_shift(piece(0, crc_offset), payload, powers);
  return block_combine(mine, [](std::uint32_t a, std::uint32_t b) { return a ^ b; });
}

}  // namespace thinwire::frame_device
