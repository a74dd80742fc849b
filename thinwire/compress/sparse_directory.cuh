// sparse_directory.cuh: what the kernels that read frames work on, and the directory of a frame,
// read by the threads of a block. Bytes are hostile: every length is checked before it is used.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "thinwire/compress/sparse_frame.cuh"
#include "thinwire/wire/value_rule.h"

namespace thinwire::sparse_frame {

inline constexpr std::uint32_t window_bytes = 2048;  // of a directory at a time
inline constexpr std::uint32_t entries_at_once = threads - 1;
inline constexpr std::uint32_t longest_entry = 11;  // two varints and a parameter

struct DecodeArguments {
  Layout layout;
  const std::byte* slots;
  std::size_t slot_bytes;
  std::uint64_t most;  // survivors that a frame may have
  std::uint32_t bucket, chunks, ranks;
  std::size_t list;  // entries between the lists of two ranks
  ChunkEntry* entries;
  OpenedFrame* opened;        // per rank
  std::uint32_t* done;        // blocks that have decoded
  std::uint32_t* tile_first;  // per rank and tile: the first of the survivors in its list
  std::uint32_t tiles;
  std::uint32_t* indices;
  float* values;
  Verdict* verdict;

  __device__ const std::uint32_t* slot(std::uint32_t rank) const {
    return reinterpret_cast<const std::uint32_t*>(slots + rank * slot_bytes);
  }
  __device__ void accuse(Code code, std::uint32_t rank) const {
    atomicCAS(reinterpret_cast<unsigned long long*>(&verdict->fault), 0ull,
              static_cast<unsigned long long>(fault_of(code, rank, bucket)));
  }
};

// A directory in shared memory, a window at a time. All threads measure the entry that would start
// at each byte; one follows the lengths from entry to entry; then each reads an entry.
struct Directory {
  std::uint8_t window[window_bytes];
  std::uint8_t length[window_bytes];  // of the entry that starts here; 0: not in the window
  std::uint16_t starts[entries_at_once + 1];
  std::uint32_t found;      // entries in the window
  std::uint32_t code;       // the first thing wrong
  std::uint64_t at;         // byte of the frame where the next entry starts
  std::uint32_t chunk;      // and its chunk
  std::uint64_t body;       // bytes of the bodies before it
  std::uint64_t survivors;  // in the chunks before it
};

// Reads a varint in the window. Behind the slot there are zeros, which end one.
__device__ inline Code read_varint(const Directory& d, std::uint32_t& at, std::uint64_t& value) {
  value = 0;
  for (unsigned i = 0; i < 5; ++i) {
    if (at >= window_bytes) return Code::truncated;
    const std::uint64_t byte = d.window[at++];
    value |= (byte & 0x7f) << (7 * i);
    if (byte < 0x80) return byte == 0 && i > 0 ? Code::bad_value : Code::ok;
  }
  return Code::bad_value;
}

// The entry at a byte of the window; moves behind it.
__device__ inline Code read_entry(const DecodeArguments& a, const Directory& d, std::uint32_t& at,
                                  std::uint32_t chunk, ChunkEntry& entry) {
  std::uint64_t head = 0, bytes = 0;
  if (const Code code = read_varint(d, at, head); code != Code::ok) return code;
  entry = {};
  if (head == 0) return Code::ok;
  if (head >> 2 == 0 || head >> 2 > chunk_extent(a.layout, chunk)) return Code::bad_value;
  if ((head & 3) > static_cast<unsigned>(IndexCoder::gap)) return Code::bad_value;
  if (at >= window_bytes) return Code::truncated;
  entry.parameter = d.window[at++];
  if (const Code code = read_varint(d, at, bytes); code != Code::ok) return code;
  if (bytes > a.slot_bytes) return Code::truncated;
  entry.count = static_cast<std::uint32_t>(head >> 2);
  entry.coder = static_cast<std::uint8_t>(head & 3);
  entry.index_bytes = static_cast<std::uint32_t>(bytes);
  return Code::ok;
}

// The length of what looks like an entry at a byte, right or wrong.
__device__ inline std::uint32_t entry_length(const Directory& d, std::uint32_t start) {
  std::uint32_t at = start;
  const auto skip_varint = [&] {
    for (unsigned i = 0; i < 5 && at < window_bytes; ++i)
      if (d.window[at++] < 0x80) return;
  };
  const bool empty = d.window[start] == 0;
  skip_varint();
  if (!empty) {
    ++at;
    skip_varint();
  }
  return at - start;
}

// All threads: reads the entries of the window at d.at, and moves on.
__device__ inline void read_window(const DecodeArguments& a, std::uint32_t rank, Directory& d,
                                   ChunkEntry* entries) {
  // Entries that follow from each other do not reach further than this.
  const std::uint32_t span =
      min(window_bytes, longest_entry * min(entries_at_once, a.chunks - d.chunk));
  for (std::uint32_t i = threadIdx.x; i < span; i += threads)
    d.window[i] = d.at + i < a.slot_bytes
                      ? static_cast<std::uint8_t>(byte_at(a.slot(rank), d.at + i))
                      : std::uint8_t{0};
  __syncthreads();
  for (std::uint32_t i = threadIdx.x; i < span; i += threads)
    d.length[i] = static_cast<std::uint8_t>(entry_length(d, i));
  __syncthreads();
  if (threadIdx.x == 0) {
    std::uint32_t at = 0, found = 0;
    while (found < entries_at_once && d.chunk + found < a.chunks &&
           at + longest_entry <= window_bytes) {
      d.starts[found++] = static_cast<std::uint16_t>(at);
      at += d.length[at];
    }
    d.found = found;
    d.starts[found] = static_cast<std::uint16_t>(at);
  }
  __syncthreads();
  ChunkEntry entry;
  Code code = Code::ok;
  std::uint64_t body = 0;
  const bool mine = threadIdx.x < d.found;
  if (mine) {
    std::uint32_t at = d.starts[threadIdx.x];
    code = read_entry(a, d, at, d.chunk + threadIdx.x, entry);
    if (d.at + at > a.slot_bytes) code = Code::truncated;
    if (entry.count != 0)
      body = entry.index_bytes + value_rule::bytes(a.layout.values, entry.count);
  }
  std::uint64_t bodies = 0, survivors = 0;
  entry.body = d.body + block_before(body, bodies);
  const std::uint64_t before = block_before(std::uint64_t{entry.count}, survivors);
  entry.first = static_cast<std::uint32_t>(d.survivors + before);
  if (mine) entries[d.chunk + threadIdx.x] = entry;
  // Some error will do; that one was made is what counts.
  if (code != Code::ok) d.code = static_cast<std::uint32_t>(code);
  __syncthreads();
  if (threadIdx.x == 0) {
    d.body += bodies;
    d.survivors += survivors;
    d.chunk += d.found;
    d.at += d.starts[d.found];
    if (d.code == 0 && d.body > a.slot_bytes) d.code = static_cast<std::uint32_t>(Code::truncated);
    if (d.code == 0 && d.survivors > a.most) d.code = static_cast<std::uint32_t>(Code::mismatch);
  }
  __syncthreads();
}

__device__ inline Code read_directory(const DecodeArguments& a, std::uint32_t rank, Directory& d,
                                      ChunkEntry* entries) {
  if (threadIdx.x == 0) {
    d.at = frame_header_bytes;
    d.body = d.survivors = 0;
    d.chunk = d.code = 0;
  }
  __syncthreads();
  while (d.code == 0 && d.chunk < a.chunks) read_window(a, rank, d, entries);
  if (d.code == 0 && d.body > a.slot_bytes - d.at) return Code::truncated;
  return static_cast<Code>(d.code);
}

__device__ inline Code compare_header(const DecodeArguments& a, const std::uint32_t* frame,
                                      bool& skipped) {
  const std::uint32_t* const expected = a.layout.header.words;
  if ((frame[0] & 0xffffu) != (expected[0] & 0xffffu)) return Code::bad_magic;
  if ((frame[0] >> 16 & 0xffu) != (expected[0] >> 16 & 0xffu)) return Code::bad_version;
  if ((frame[1] & 0xffu) > 1) return Code::bad_value;
  skipped = (frame[1] & 0xffu) == 1;
  const bool same = frame[0] == expected[0] && frame[1] >> 8 == expected[1] >> 8 &&
                    frame[2] == expected[2] && frame[3] == expected[3];
  return same ? Code::ok : Code::mismatch;
}

}  // namespace thinwire::sparse_frame
