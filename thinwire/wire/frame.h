// frame.h: one bucket of one worker in one step, as bytes. docs/wire_format.md is the
// specification; this is a summary.
//
//    0  2  magic "tw"
//    2  1  version
//    3  1  scheme id
//    4  1  flags: bit 0 = skipped (the gradient was not finite; no payload follows)
//    5  1  low 3 bits: value coder; high 5 bits: log2 of the chunk's extent
//    6  2  bucket
//    8  4  step (its low 32 bits)
//   12  4  elements of the bucket
//   16  4  CRC-32C of bytes 0..15 and of everything after this field
//   20     payload
//
// All numbers are little-endian. A sparse payload is a directory (per chunk: count and index coder,
// parameter, index bytes), followed by the indices and values of each chunk. The bucket is cut into
// chunks of 2^c elements; the last one may be shorter. c is chosen so that a chunk holds about a
// thousand survivors: enough to make its header cheap, few enough that chunks are units of parallel
// work. A chunk is a whole number of tiles (core/tile.h) or the whole bucket. The length of a
// frame follows from its contents, so it may lie in a longer slot.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "thinwire/core/status.h"
#include "thinwire/core/view.h"
#include "thinwire/wire/index.h"
#include "thinwire/wire/values.h"

namespace thinwire {

inline constexpr std::uint8_t wire_version = 2;
inline constexpr std::size_t frame_header_bytes = 20;

struct FrameHeader {
  std::uint8_t scheme = 0;
  bool skipped = false;
  ValueCoder values = ValueCoder::f32;
  std::uint8_t chunk_log2 = 0;
  std::uint16_t bucket = 0;
  std::uint32_t step = 0;
  std::uint32_t elements = 0;

  bool operator==(const FrameHeader&) const = default;
};

// Reads the first 20 bytes and checks magic, version and ranges, but not the CRC.
Status read_header(ConstBytes frame, FrameHeader& header);
// Writes them, with the CRC of the whole frame. Call it when the rest of the frame is complete.
void seal_frame(const FrameHeader& header, Bytes frame);
// Whether the CRC of the frame is right. `frame` has exactly the length of the frame.
bool checksum_holds(ConstBytes frame);

// The same without the CRC.
void write_frame_header(const FrameHeader& header, Bytes frame);
// The number of chunks of a sparse frame.
std::size_t frame_chunks(const FrameHeader& header);

// The survivors of one bucket: indices ascending, one value each.
struct Sparse {
  std::vector<std::uint32_t> indices;
  std::vector<float> values;
};

// log2 of the chunk extent for about `survivors` of `elements`. Encoders put it into
// FrameHeader::chunk_log2.
std::uint8_t chunk_log2_for(std::uint32_t elements, std::size_t survivors);

// An upper bound of the frame's bytes for at most `survivors` survivors.
std::size_t sparse_frame_bound(const FrameHeader& header, std::size_t survivors);

// Writes the whole frame into `out` (at least sparse_frame_bound() bytes), replaces each value by
// the value that receivers will decode, and returns the bytes written. Indices ascend and are below
// header.elements; values are finite and non-zero. With header.skipped there must be no survivors.
std::size_t encode_sparse(const FrameHeader& header, std::span<const std::uint32_t> indices,
                          std::span<float> values, IndexChoice choice, Bytes out);

// Checks and decodes the frame at the start of `bytes`. On success it fills `header` and `out`, and
// sets `used` to the length of the frame. It accepts at most `most` survivors, so that no length
// from the network decides an allocation. On an error `out` is unspecified. A sound frame with the
// skipped flag returns Code::skipped with `header` and `used` set and `out` empty, so that no
// caller takes it for a gradient of zeros.
Status decode_sparse(ConstBytes bytes, std::size_t most, FrameHeader& header, Sparse& out,
                     std::size_t& used);

// One line per chunk, for `thinwire inspect`.
struct ChunkInfo {
  std::uint32_t first = 0;   // element where the chunk starts
  std::uint32_t extent = 0;  // elements it spans
  std::size_t count = 0;     // survivors in it
  IndexCode indices;
  std::size_t value_bytes = 0;
};
// Reads the chunks of the directory. It checks lengths, but neither contents nor the CRC. Returns
// Code::skipped as decode_sparse() does.
Status read_directory(ConstBytes frame, FrameHeader& header, std::vector<ChunkInfo>& chunks,
                      std::size_t& used);

}  // namespace thinwire
