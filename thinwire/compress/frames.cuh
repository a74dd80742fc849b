// frames.cuh: what the kernels that write and that read block frames share: payloads, blame, and
// the checksum of a frame by many blocks.
//
// The checksum works on lines of 16 bytes. A thread takes every N-th line, counted from the last
// one, so that loads are coalesced: its sum moves on by N lines with a table of products. Bytes of
// a line that are not of the payload count as zeros; zeros in front change nothing, and zeros
// behind are taken back at the end.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "thinwire/compress/frames_cuda.h"
#include "thinwire/core/crc32c_rule.h"
#include "thinwire/core/launch.cuh"

namespace thinwire::block_frame {

inline constexpr unsigned threads = block_threads;
inline constexpr std::uint32_t crc_word = 4, length_word = 5;

// The last block of the grid to come here returns true; it sees what all others have written.
__device__ inline bool is_last_block(std::uint32_t* done) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    last = atomicAdd(done, 1) == gridDim.x - 1;
    if (last) *done = 0;
  }
  __syncthreads();
  __threadfence();
  return last;
}

__device__ inline const std::uint8_t* payload_of(const BlockPayloads& in, std::uint32_t rank) {
  return reinterpret_cast<const std::uint8_t*>(in.slots) + rank * in.slot_bytes +
         block_header_bytes;
}

__device__ inline void accuse(Verdict* verdict, Code code, std::uint32_t rank,
                              std::uint32_t bucket) {
  atomicCAS(reinterpret_cast<unsigned long long*>(&verdict->fault), 0ull,
            static_cast<unsigned long long>(fault_of(code, rank, bucket)));
}

static __constant__ const Crc32cPowers powers = crc32c_powers();

// at[t] = x^(128 * t): what t lines that follow do to a checksum.
struct LineWeights {
  std::uint32_t at[threads] = {};
};
constexpr LineWeights line_weights() {
  LineWeights weights;
  const std::uint32_t line = crc32c_powers().at[1][1];
  weights.at[0] = 0x80000000u;
  for (unsigned t = 1; t < threads; ++t) weights.at[t] = crc32c_times(weights.at[t - 1], line);
  return weights;
}
static __device__ const LineWeights weights = line_weights();

// Tables in shared memory. Each lane has a copy of the bytes' entries in its own bank.
struct CrcTables {
  std::uint32_t entry[256][32];
  std::uint32_t far[4][256];  // products with x^(128 * (stride - 1)), by byte

  __device__ void make(std::uint64_t stride, bool needs_far) {
    const std::uint32_t mine = crc32c_entry(threadIdx.x);
    for (unsigned k = 0; k < 32; ++k) entry[threadIdx.x][(threadIdx.x + k) % 32] = mine;
    if (needs_far) {
      const std::uint32_t factor = crc32c_shift(0x80000000u, line_bytes * (stride - 1), powers);
      for (unsigned k = 0; k < 4; ++k)
        far[k][threadIdx.x] = crc32c_times(threadIdx.x << 8 * k, factor);
    }
    __syncthreads();
  }
  __device__ std::uint32_t leap(std::uint32_t crc) const {
    return far[0][crc & 0xffu] ^ far[1][crc >> 8 & 0xffu] ^ far[2][crc >> 16 & 0xffu] ^
           far[3][crc >> 24];
  }
  __device__ std::uint32_t add_word(std::uint32_t crc, std::uint32_t word) const {
    crc ^= word;
#pragma unroll
    for (int k = 0; k < 4; ++k) crc = crc >> 8 ^ entry[crc & 0xffu][threadIdx.x % 32];
    return crc;
  }
};

// Line `line` of a frame, with zeros outside of the payload's `bytes` bytes.
__device__ inline uint4 payload_line(const std::byte* frame, std::uint64_t line,
                                     std::uint64_t bytes) {
  uint4 words = reinterpret_cast<const uint4*>(frame)[line];
  if (line == 1) words.x = words.y = 0;  // header and length
  const std::uint64_t rest = block_header_bytes + bytes - line_bytes * line;
  if (rest < line_bytes) {
    const auto keep = [&](std::uint32_t& word, std::uint64_t at) {
      if (rest <= at) {
        word = 0;
      } else if (rest < at + 4) {
        word &= (1u << 8 * (rest - at)) - 1;
      }
    };
    keep(words.x, 0);
    keep(words.y, 4);
    keep(words.z, 8);
    keep(words.w, 12);
  }
  return words;
}

// The share that block `block` of `blocks` has in the sum of a payload's lines. The XOR of all
// shares is the sum. In every thread. Where `copy` is not null, the payload is copied to that
// frame.
__device__ inline std::uint32_t payload_share(CrcTables& tables, const std::byte* frame,
                                              std::uint64_t bytes, unsigned block, unsigned blocks,
                                              std::byte* copy = nullptr) {
  __shared__ std::uint32_t sum;
  if (bytes == 0) return 0;
  // Line 0 is header; the payload starts in line 1.
  const std::uint64_t lines = (block_header_bytes + bytes - 1) / line_bytes;
  const std::uint64_t stride = std::uint64_t{blocks} * threads;
  const std::uint64_t id = std::uint64_t{block} * threads + threadIdx.x;
  tables.make(stride, lines > stride);
  if (threadIdx.x == 0) sum = 0;
  __syncthreads();
  std::uint32_t crc = 0;
  if (id < lines) {
    const std::uint64_t first = (lines - 1 - id) / stride;  // steps that follow the first
    std::uint64_t line = lines - id - first * stride;
#pragma unroll 4
    for (std::uint64_t k = 0; k <= first; ++k, line += stride) {
      const uint4 words = payload_line(frame, line, bytes);
      if (copy != nullptr) {
        std::byte* const to = copy + line_bytes * line;
        if (line > 1) {
          *reinterpret_cast<uint4*>(to) = words;
        } else {  // behind header and length
          *reinterpret_cast<uint2*>(to + 8) = {words.z, words.w};
        }
      }
      if (k > 0) crc = tables.leap(crc);
      crc = tables.add_word(crc, words.x);
      crc = tables.add_word(crc, words.y);
      crc = tables.add_word(crc, words.z);
      crc = tables.add_word(crc, words.w);
    }
    crc = crc32c_times(crc, weights.at[threadIdx.x]);
  }
  crc = __reduce_xor_sync(~0u, crc);
  if (threadIdx.x % 32 == 0) atomicXor(&sum, crc);
  __syncthreads();
  return crc32c_shift(sum, std::uint64_t{line_bytes} * threads * block, powers);
}

// The checksum of a frame from its header's words, and the sum of its payload's lines. A skipped
// frame has neither length nor payload.
__device__ inline std::uint32_t frame_checksum(const std::uint32_t* header, bool skipped,
                                               std::uint32_t bytes, std::uint32_t lines_sum) {
  std::uint32_t crc = ~0u;
  const auto add = [&](std::uint32_t word) {
    crc ^= word;
    for (int k = 0; k < 4; ++k) crc = crc >> 8 ^ crc32c_entry(crc & 0xffu);
  };
  for (int k = 0; k < 4; ++k) add(header[k]);
  if (skipped) return ~crc;
  add(bytes);
  const auto behind = static_cast<std::uint32_t>(
      (line_bytes - (block_header_bytes + bytes) % line_bytes) % line_bytes);
  return ~(crc32c_shift(crc, bytes, powers) ^ crc32c_unshift(lines_sum, behind));
}

// The blocks that share the checksum of one frame.
inline unsigned checksum_blocks(std::size_t slot_bytes, std::size_t frames) {
  constexpr std::size_t most = 2112;  // twice what a large GPU runs at once
  const std::size_t each = (slot_bytes / line_bytes + 8 * threads - 1) / (8 * threads);
  return static_cast<unsigned>(
      std::clamp<std::size_t>(each, 1, std::max<std::size_t>(1, most / frames)));
}

}  // namespace thinwire::block_frame
