// frame_sums.cuh: adds up the lines of one frame, or of all ranks' frames (frame_sums.h).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "thinwire/compress/frames.cuh"

namespace thinwire::block_frame {

static_assert(sum_threads == threads);

// In shared memory. Lane i uses copy i % 8 of an entry: fewer lanes meet in a bank.
struct SumTables {
  static constexpr unsigned copies = 8;
  std::uint32_t entry[256][copies];
  std::uint32_t far[sum_sections][4][256];
};

// Whether a decoder after glance() goes on. Where nobody needs the average, the frames are checked
// all the same.
__device__ inline bool may_average(const BlockPayloads& in) {
  if (in.check->suspect != 0) return false;
  const Verdict verdict = *in.verdict;
  if (!verdict.void_step() && verdict.unsound == 0) return true;
  if (thread_index() == 0) in.check->suspect = 1;
  return false;
}

// At the end of a decoder, in all threads: the last block compares.
__device__ inline void compare_sums(const BlockPayloads& in) {
  if (is_last_block(&in.check->done) && threadIdx.x == 0 &&
      __ldcg(&in.check->found) != in.check->expected)
    in.check->suspect = 1;
}

// A line of all frames, added up, and the bits that were moved out of it.
struct AllFrames {
  const BlockPayloads& in;
  std::uint64_t payload;

  __device__ void read(std::uint64_t line, std::uint32_t (&all)[5]) const {
    const bool edge = line == 1 || line_bytes * (line + 1) > block_header_bytes + payload;
    for (std::uint32_t base = 0; base < in.ranks; base += summed_ranks) {
      const std::uint32_t ranks = min(summed_ranks, in.ranks - base);
      const std::byte* const frames = in.slots + base * in.slot_bytes;
      std::uint32_t sum[5] = {};
#pragma unroll 4
      for (std::uint32_t r = 0; r < ranks; ++r) {
        const std::byte* const frame = frames + r * in.slot_bytes;
        const uint4 words =
            edge ? payload_line(frame, line, payload) : reinterpret_cast<const uint4*>(frame)[line];
        sum[4] = __funnelshift_l(sum[3], sum[4], 1);
        sum[3] = __funnelshift_l(sum[2], sum[3], 1) ^ words.w;
        sum[2] = __funnelshift_l(sum[1], sum[2], 1) ^ words.z;
        sum[1] = __funnelshift_l(sum[0], sum[1], 1) ^ words.y;
        sum[0] = sum[0] << 1 ^ words.x;
      }
      for (unsigned k = 0; k < 5; ++k) all[k] ^= sum[k];
    }
  }
};

// A line of one frame. Where `copy` is not null, the payload is copied to that frame.
struct OneFrame {
  const std::byte* frame;
  std::byte* copy;
  std::uint64_t payload;

  __device__ void read(std::uint64_t line, std::uint32_t (&all)[5]) const {
    const std::uint64_t end = block_header_bytes + payload;
    if (line_bytes * line >= end) return;
    const bool edge = line == 1 || line_bytes * (line + 1) > end;
    const uint4 words =
        edge ? payload_line(frame, line, payload) : reinterpret_cast<const uint4*>(frame)[line];
    all[0] = words.x;
    all[1] = words.y;
    all[2] = words.z;
    all[3] = words.w;
    if (copy == nullptr) return;
    std::byte* const to = copy + line_bytes * line;
    if (line > 1) {
      *reinterpret_cast<uint4*>(to) = words;
    } else {  // behind header and length
      *reinterpret_cast<uint2*>(to + 8) = {words.z, words.w};
    }
  }
};

// Adds up the lines of one block's tiles, which are gridDim.x apart.
class LineSums {
 public:
  // All threads of the block. Reads only tables, so it may run before await_previous().
  __device__ LineSums(SumTables& tables, const SumPlan& plan) : tables_(tables), plan_(plan) {
    const unsigned t = threadIdx.x;
    for (unsigned k = 0; k < SumTables::copies; ++k)
      tables.entry[t][(t + k) % SumTables::copies] = plan.tables[t];
    for (unsigned k = 0; k < 4 * plan.sections; ++k)
      tables.far[k / 4][k % 4][t] = plan.tables[threads * (1 + k) + t];
    __syncthreads();
  }

  template <typename Lines>
  __device__ void add(const Lines& lines, std::uint32_t tile) {
#pragma unroll
    for (unsigned s = 0; s < sum_sections; ++s) {
      if (s >= plan_.sections) break;
      const LineSection section = plan_.section[s];
#pragma unroll
      for (unsigned turn = 0; turn < sum_turns; ++turn) {
        const std::uint32_t j = turn * threads + threadIdx.x;
        if (j >= section.each) break;
        const std::uint64_t line = section.first + std::uint64_t{tile} * section.each + j;
        std::uint32_t crc = leap(s, crc_[s][turn]);
        if (line < section.end) crc ^= sum_of(lines, line);
        crc_[s][turn] = crc;
      }
    }
  }

  // Behind the last tile.
  __device__ void finish(std::uint32_t* found) const {
    const std::uint32_t* weights = plan_.tables + threads * (1 + 4 * plan_.sections);
#pragma unroll
    for (unsigned s = 0; s < sum_sections; ++s) {
      if (s >= plan_.sections) break;
      const std::uint32_t each = plan_.section[s].each;
      std::uint32_t crc = 0;
#pragma unroll
      for (unsigned turn = 0; turn < sum_turns; ++turn) {
        const std::uint32_t j = turn * threads + threadIdx.x;
        if (j < each) crc ^= crc32c_times(crc_[s][turn], weights[j]);
      }
      crc = __reduce_xor_sync(~0u, crc);
      if (threadIdx.x % 32 == 0) atomicXor(found, crc32c_times(crc, weights[each + blockIdx.x]));
      weights += each + gridDim.x;
    }
  }

 private:
  __device__ std::uint32_t leap(unsigned s, std::uint32_t crc) const {
    const auto& far = tables_.far[s];
    return far[0][crc & 0xffu] ^ far[1][crc >> 8 & 0xffu] ^ far[2][crc >> 16 & 0xffu] ^
           far[3][crc >> 24];
  }

  // The checksum of 17 bytes: a line, and the bits that were moved out of it.
  template <typename Lines>
  __device__ std::uint32_t sum_of(const Lines& lines, std::uint64_t line) const {
    std::uint32_t all[5] = {}, crc = 0;
    lines.read(line, all);
#pragma unroll
    for (unsigned k = 0; k < 4; ++k) {
      crc ^= all[k];
#pragma unroll
      for (unsigned b = 0; b < 4; ++b) crc = add_byte(crc);
    }
    return add_byte(crc ^ all[4]);
  }
  __device__ std::uint32_t add_byte(std::uint32_t crc) const {
    return crc >> 8 ^ tables_.entry[crc & 0xffu][threadIdx.x % SumTables::copies];
  }

  const SumTables& tables_;
  const SumPlan& plan_;
  std::uint32_t crc_[sum_sections][sum_turns] = {};
};

// What the checksum of rank r's lines, which ends behind the payload, becomes in the sum of all.
// `behind` is of FrameSums.
__device__ inline std::uint32_t summed(std::uint32_t lines_sum, std::uint32_t rank,
                                       std::uint32_t ranks, std::uint32_t behind) {
  const std::uint32_t base = rank / summed_ranks * summed_ranks;
  // A byte follows the lines; the last rank of eight is not moved, the one before by a bit...
  const std::uint32_t moved = min(summed_ranks, ranks - base) - 1 - (rank - base);
  std::uint32_t sum = crc32c_times(lines_sum, behind);
  for (std::uint32_t bit = 0; bit < moved; ++bit) {
    const std::uint32_t carry = sum >> 31;
    sum = (sum ^ (0x82f63b78u & (0u - carry))) << 1 | carry;
  }
  return sum;
}

}  // namespace thinwire::block_frame
