// sparse_frame.cuh: what the kernels that write and that read frames share: bits in words, and the
// checksum of a frame by the threads of a block.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cub/block/block_scan.cuh>

#include "thinwire/compress/sparse_frame_cuda.h"
#include "thinwire/core/crc32c_rule.h"
#include "thinwire/core/element.h"
#include "thinwire/core/launch.cuh"

namespace thinwire::sparse_frame {

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

// combine(combine(a, b), c)... over the block, in any order, in every thread.
template <typename T, typename Combine>
__device__ T block_combine(T mine, const Combine& combine) {
  __shared__ T parts[threads / 32];
  for (int step = 16; step > 0; step /= 2) mine = combine(mine, __shfl_xor_sync(~0u, mine, step));
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = mine;
  __syncthreads();
  T all = parts[0];
#pragma unroll
  for (int warp = 1; warp < threads / 32; ++warp) all = combine(all, parts[warp]);
  __syncthreads();
  return all;
}

__device__ inline std::uint64_t block_sum(std::uint64_t mine) {
  return block_combine(mine, [](std::uint64_t a, std::uint64_t b) { return a + b; });
}

__device__ inline std::uint32_t block_sum(std::uint32_t mine) {
  __shared__ std::uint32_t parts[threads / 32];
  const std::uint32_t warp = __reduce_add_sync(~0u, mine);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = warp;
  __syncthreads();
  std::uint32_t all = 0;
#pragma unroll
  for (int i = 0; i < threads / 32; ++i) all += parts[i];
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

// The table of the bytewise algorithm. A block that uses piece_checksum() makes one first.
struct CrcTable {
  std::uint32_t at[256];

  __device__ void make() {
    for (int i = static_cast<int>(threadIdx.x); i < 256; i += threads)
      at[i] = crc32c_entry(static_cast<std::uint32_t>(i));
    __syncthreads();
  }
};

// What bytes [from, to) of a frame of `length` bytes give to its checksum; the block shares them
// out. The checksum is the XOR over pieces that together are the whole frame but the checksum
// itself. Words are read from the L2 cache, where other threads of the block have set bits.
__device__ inline std::uint32_t piece_checksum(const CrcTable& table, const std::uint32_t* words,
                                               std::uint64_t from, std::uint64_t to,
                                               std::uint64_t length) {
  const std::uint64_t each = ((to - from) / threads + 4) / 4 * 4;
  const std::uint64_t first = min(to, from + each * threadIdx.x), end = min(to, first + each);
  std::uint32_t mine = 0;
  if (first < end) {
    std::uint32_t crc = ~0u;
    std::uint64_t at = first;
    while (at < end) {
      std::uint32_t word = __ldcg(words + (at >> 2)) >> (8 * (at & 3));
      const std::uint64_t stop = min(end, (at & ~std::uint64_t{3}) + 4);
      for (; at < stop; ++at, word >>= 8) crc = crc >> 8 ^ table.at[(crc ^ word) & 0xffu];
    }
    mine = crc32c_shift(~crc, length - end, powers);
  }
  return block_combine(mine, [](std::uint32_t a, std::uint32_t b) { return a ^ b; });
}

// The same for the header: the 16 bytes before the checksum, which do not count themselves.
__device__ inline std::uint32_t header_checksum(const CrcTable& table, const std::uint32_t* header,
                                                std::uint64_t length) {
  std::uint32_t crc = ~0u;
  for (std::uint32_t i = 0; i < crc_offset; ++i)
    crc = crc >> 8 ^ table.at[(crc ^ header[i / 4] >> (8 * (i % 4))) & 0xffu];
  return crc32c_shift(~crc, length - frame_header_bytes, powers);
}

}  // namespace thinwire::sparse_frame
