// frame.cc: frames of sparse buckets: header, directory of chunks, bodies, checksum.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/wire/frame.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "thinwire/core/crc32c.h"
#include "thinwire/core/error.h"
#include "thinwire/core/tile.h"
#include "thinwire/wire/bits.h"

namespace thinwire {
namespace {

constexpr std::size_t crc_offset = 16;
constexpr std::size_t longest_varint = 5;
constexpr std::uint8_t largest_chunk_log2 = 31;
constexpr std::size_t chunk_target = 1024;  // survivors per chunk that encoders aim at

template <typename T>
void store(Bytes out, std::size_t at, T value) {
  std::memcpy(out.data() + at, &value, sizeof value);
}

template <typename T>
T load(ConstBytes bytes, std::size_t at) {
  T value{};
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

std::size_t varint_size(std::uint64_t value) {
  return (static_cast<std::size_t>(std::bit_width(value | 1)) + 6) / 7;
}

std::size_t write_varint(std::uint64_t value, Bytes out) {
  std::size_t size = 0;
  for (; value >= 0x80; value >>= 7) out[size++] = static_cast<std::byte>((value & 0x7f) | 0x80);
  out[size++] = static_cast<std::byte>(value);
  return size;
}

// Accepts the shortest form only, so that every number has exactly one encoding.
Status read_varint(ConstBytes bytes, std::size_t& at, std::uint64_t& value) {
  value = 0;
  for (unsigned i = 0; i < longest_varint; ++i) {
    if (at >= bytes.size()) return {Code::truncated, "frame ends inside its directory"};
    const auto byte = std::to_integer<std::uint64_t>(bytes[at++]);
    value |= (byte & 0x7f) << (7 * i);
    if (byte < 0x80) {
      if (byte == 0 && i > 0)
        return {Code::bad_value, "directory: a number is not in its shortest form"};
      return {};
    }
  }
  return {Code::bad_value, "directory: a number has more than five bytes"};
}

std::size_t chunks_of(const FrameHeader& header) {
  return static_cast<std::size_t>(
      (std::uint64_t{header.elements} + (std::uint64_t{1} << header.chunk_log2) - 1) >>
      header.chunk_log2);
}

std::uint32_t extent_of(const FrameHeader& header, std::size_t chunk) {
  const std::uint64_t first = std::uint64_t{chunk} << header.chunk_log2;
  return static_cast<std::uint32_t>(
      std::min(header.elements - first, std::uint64_t{1} << header.chunk_log2));
}

// An upper bound of the directory's bytes.
std::size_t directory_bound(const FrameHeader& header, std::size_t survivors) {
  const std::size_t chunks = chunks_of(header), full = std::min(chunks, survivors);
  if (chunks == 0) return 0;
  const std::uint32_t extent = extent_of(header, 0);
  const std::size_t most = std::min<std::size_t>(extent, survivors);
  // Fewer survivors never need more index bytes, except for two by rounding.
  const std::size_t entry =
      varint_size(std::uint64_t{most} << 2 | 3) + 1 + varint_size(index_bound(most, extent) + 2);
  return full * entry + (chunks - full);
}

std::uint32_t checksum(ConstBytes frame) {
  return crc32c(frame.subspan(frame_header_bytes), crc32c(frame.first(crc_offset)));
}

}  // namespace

std::size_t frame_chunks(const FrameHeader& header) { return chunks_of(header); }

void write_frame_header(const FrameHeader& header, Bytes out) {
  store<std::uint8_t>(out, 0, 't');
  store<std::uint8_t>(out, 1, 'w');
  store(out, 2, wire_version);
  store(out, 3, header.scheme);
  store<std::uint8_t>(out, 4, header.skipped ? 1 : 0);
  store(out, 5,
        static_cast<std::uint8_t>(static_cast<unsigned>(header.values) | unsigned{header.chunk_log2}
                                                                             << 3));
  store(out, 6, header.bucket);
  store(out, 8, header.step);
  store(out, 12, header.elements);
}

namespace {

// Walks over the directory, one chunk at a time, checking every field.
class Directory {
 public:
  Directory(const FrameHeader& header, ConstBytes frame)
      : header_(header), frame_(frame), chunks_(chunks_of(header)) {}

  bool done() const { return chunk_ == chunks_; }

  // The next chunk; only while not done().
  Status next(ChunkInfo& info) {
    std::uint64_t head = 0, bytes = 0;
    if (const Status status = read_varint(frame_, at_, head); !status.ok()) return status;
    info = {};
    info.first = static_cast<std::uint32_t>(std::uint64_t{chunk_} << header_.chunk_log2);
    info.extent = extent_of(header_, chunk_++);
    if (head == 0) return {};
    if (head >> 2 == 0 || head >> 2 > info.extent)
      return {Code::bad_value, "directory: a chunk's count is out of range"};
    if ((head & 3) > static_cast<unsigned>(IndexCoder::gap))
      return {Code::bad_value, "directory: unknown index coder"};
    if (at_ >= frame_.size()) return {Code::truncated, "frame ends inside its directory"};
    const auto parameter = std::to_integer<std::uint8_t>(frame_[at_++]);
    if (const Status status = read_varint(frame_, at_, bytes); !status.ok()) return status;
    info.count = static_cast<std::size_t>(head >> 2);
    info.indices = {static_cast<IndexCoder>(head & 3), parameter, static_cast<std::size_t>(bytes)};
    info.value_bytes = value_bytes(header_.values, info.count);
    return {};
  }

  std::size_t end() const { return at_; }  // of the directory, when done()

 private:
  const FrameHeader& header_;
  ConstBytes frame_;
  std::size_t chunks_, chunk_ = 0;
  std::size_t at_ = frame_header_bytes;
};

struct Extent {
  std::size_t survivors = 0;
  std::size_t bodies = 0;  // where they start
  std::size_t bytes = 0;   // of the frame
};

// Measures the frame by its directory; nothing is allocated. `visit` sees every chunk.
template <typename Visit>
Status measure(ConstBytes bytes, FrameHeader& header, Extent& extent, Visit visit) {
  extent = {};
  if (const Status status = read_header(bytes, header); !status.ok()) return status;
  Directory directory(header, bytes);
  std::size_t left = bytes.size() - frame_header_bytes;  // bytes that bodies may have
  if (header.skipped) {
    extent.bodies = extent.bytes = frame_header_bytes;
    return {};
  }
  while (!directory.done()) {
    ChunkInfo chunk;
    if (const Status status = directory.next(chunk); !status.ok()) return status;
    if (chunk.indices.bytes > left || chunk.value_bytes > left - chunk.indices.bytes)
      return {Code::truncated, "frame ends inside its bodies"};
    left -= chunk.indices.bytes + chunk.value_bytes;
    extent.survivors += chunk.count;
    visit(chunk);
  }
  extent.bodies = directory.end();
  const std::size_t body_bytes = bytes.size() - frame_header_bytes - left;
  if (body_bytes > bytes.size() - extent.bodies)
    return {Code::truncated, "frame ends inside its bodies"};
  extent.bytes = extent.bodies + body_bytes;
  return {};
}

constexpr Status step_skipped{Code::skipped, "a gradient was not finite: the step is skipped"};

Status decode_bodies(ConstBytes frame, const FrameHeader& header, std::size_t at, Sparse& out) {
  Directory directory(header, frame);
  std::size_t done = 0;
  while (!directory.done()) {
    ChunkInfo chunk;
    if (const Status status = directory.next(chunk); !status.ok()) return status;
    if (chunk.count == 0) continue;
    const std::span indices = std::span(out.indices).subspan(done, chunk.count);
    const Status status =
        index_decode(chunk.indices, frame.subspan(at, chunk.indices.bytes), chunk.extent, indices);
    if (!status.ok()) return status;
    for (std::uint32_t& index : indices) index += chunk.first;
    at += chunk.indices.bytes;
    const Status decoded = value_decode(header.values, frame.subspan(at, chunk.value_bytes),
                                        std::span(out.values).subspan(done, chunk.count));
    if (!decoded.ok()) return decoded;
    at += chunk.value_bytes;
    done += chunk.count;
  }
  return {};
}

// Appends chunks: directory entries at the front, bodies after the longest possible directory.
class ChunkWriter {
 public:
  ChunkWriter(const FrameHeader& header, Bytes out, std::size_t survivors)
      : header_(header),
        out_(out),
        bodies_(frame_header_bytes + directory_bound(header, survivors)),
        body_end_(bodies_) {}

  void add(std::size_t chunk, std::span<const std::uint32_t> indices, std::span<float> values,
           IndexChoice choice) {
    if (indices.empty()) {
      out_[entry_++] = std::byte{0};
      return;
    }
    const auto first = static_cast<std::uint32_t>(std::uint64_t{chunk} << header_.chunk_log2);
    relative_.resize(indices.size());
    std::transform(indices.begin(), indices.end(), relative_.begin(),
                   [first](std::uint32_t index) { return index - first; });
    const IndexCode code =
        index_encode(relative_, extent_of(header_, chunk), choice, out_.subspan(body_end_));
    body_end_ += code.bytes;
    const std::size_t size = value_bytes(header_.values, values.size());
    value_encode(header_.values, values, out_.subspan(body_end_, size));
    body_end_ += size;
    const auto coder = static_cast<std::uint64_t>(code.coder);
    entry_ += write_varint(std::uint64_t{indices.size()} << 2 | coder, out_.subspan(entry_));
    out_[entry_++] = static_cast<std::byte>(code.parameter);
    entry_ += write_varint(code.bytes, out_.subspan(entry_));
  }

  // Closes the space between directory and bodies; returns the frame's length.
  std::size_t finish() {
    const std::size_t size = body_end_ - bodies_;
    std::memmove(out_.data() + entry_, out_.data() + bodies_, size);
    return entry_ + size;
  }

 private:
  const FrameHeader& header_;
  Bytes out_;
  std::size_t entry_ = frame_header_bytes;  // where the next directory entry goes
  std::size_t bodies_, body_end_;
  std::vector<std::uint32_t> relative_;  // indices from their chunk's first element
};

void check_encodable(const FrameHeader& header, std::size_t indices, std::size_t values,
                     std::size_t room) {
  if (header.chunk_log2 > largest_chunk_log2)
    fail("frame of bucket ", header.bucket, ": expected a chunk of at most 2^31 elements, got 2^",
         int{header.chunk_log2});
  if (indices != values || (header.skipped && indices != 0))
    fail("frame of bucket ", header.bucket,
         ": expected a value for each index, and none when skipped; got ", indices, " indices and ",
         values, " values");
  if (const std::size_t bound = sparse_frame_bound(header, indices); room < bound)
    fail("frame of bucket ", header.bucket, ": expected room for ", bound, " bytes, got ", room,
         "; size it with sparse_frame_bound()");
}

}  // namespace

Status read_header(ConstBytes frame, FrameHeader& header) {
  header = {};
  if (frame.size() < frame_header_bytes) return {Code::truncated, "shorter than a frame's header"};
  if (load<char>(frame, 0) != 't' || load<char>(frame, 1) != 'w')
    return {Code::bad_magic, "not a thinwire frame"};
  if (load<std::uint8_t>(frame, 2) != wire_version)
    return {Code::bad_version, "written by another version of the frame format"};
  const auto flags = load<std::uint8_t>(frame, 4), layout = load<std::uint8_t>(frame, 5);
  if (flags > 1) return {Code::bad_value, "unknown flags"};
  if ((layout & 7u) >= value_coder_count) return {Code::bad_value, "unknown value coder"};
  header.scheme = load<std::uint8_t>(frame, 3);
  header.skipped = flags == 1;
  header.values = static_cast<ValueCoder>(layout & 7u);
  header.chunk_log2 = static_cast<std::uint8_t>(layout >> 3);
  header.bucket = load<std::uint16_t>(frame, 6);
  header.step = load<std::uint32_t>(frame, 8);
  header.elements = load<std::uint32_t>(frame, 12);
  return {};
}

void seal_frame(const FrameHeader& header, Bytes frame) {
  write_frame_header(header, frame);
  store(frame, crc_offset, checksum(frame));
}

bool checksum_holds(ConstBytes frame) {
  return load<std::uint32_t>(frame, crc_offset) == checksum(frame);
}

// The smallest chunk of whole tiles that expects chunk_target survivors; when there are fewer in
// all, or less than a tile of elements, the smallest that holds the whole bucket, as far as 2^31
// elements go.
std::uint8_t chunk_log2_for(std::uint32_t elements, std::size_t survivors) {
  std::uint8_t log2 = 0;
  while (log2 < largest_chunk_log2 && (std::uint64_t{1} << log2) < elements &&
         (log2 < tile_log2 || (std::uint64_t{std::min<std::size_t>(survivors, elements)} << log2) <
                                  std::uint64_t{elements} * chunk_target))
    ++log2;
  return log2;
}

// Index bytes: index_bound() before rounding is the least of linear functions of (count, extent),
// so no distribution over chunks exceeds the bound of the whole; each chunk may round up twice.
std::size_t sparse_frame_bound(const FrameHeader& header, std::size_t survivors) {
  if (header.skipped || header.elements == 0) return frame_header_bytes;
  survivors = std::min<std::size_t>(survivors, header.elements);
  const std::size_t full = std::min(chunks_of(header), survivors);
  std::size_t bytes = frame_header_bytes + directory_bound(header, survivors);
  if (survivors == 0) return bytes;
  const unsigned low = mean_gap_log2(survivors, header.elements);
  const std::uint64_t index_bits =
      std::uint64_t{survivors} * (low + 1) + (header.elements >> low) + 1;
  bytes += static_cast<std::size_t>(index_bits / 8) + 1 + 2 * full;
  return bytes + survivors * value_bits(header.values) / 8 + full * (value_bytes(header.values, 1));
}

std::size_t encode_sparse(const FrameHeader& header, std::span<const std::uint32_t> indices,
                          std::span<float> values, IndexChoice choice, Bytes out) {
  check_encodable(header, indices.size(), values.size(), out.size());
  std::size_t length = frame_header_bytes;
  if (!header.skipped) {
    ChunkWriter writer(header, out, indices.size());
    std::size_t from = 0;
    for (std::size_t chunk = 0; chunk < chunks_of(header); ++chunk) {
      const std::uint64_t end =
          std::min<std::uint64_t>(header.elements, std::uint64_t{chunk + 1} << header.chunk_log2);
      std::size_t to = from;
      while (to < indices.size() && indices[to] < end) ++to;
      writer.add(chunk, indices.subspan(from, to - from), values.subspan(from, to - from), choice);
      from = to;
    }
    if (from != indices.size())
      fail("frame of bucket ", header.bucket, ": index ", indices[from],
           " is out of order or not below ", header.elements);
    length = writer.finish();
  }
  seal_frame(header, out.first(length));
  return length;
}

Status decode_sparse(ConstBytes bytes, std::size_t most, FrameHeader& header, Sparse& out,
                     std::size_t& used) {
  out.indices.clear();
  out.values.clear();
  used = 0;
  Extent extent;
  const Status measured = measure(bytes, header, extent, [](const ChunkInfo&) {});
  if (!measured.ok()) return measured;
  const ConstBytes frame = bytes.first(extent.bytes);
  if (!checksum_holds(frame))
    return {Code::bad_checksum, "frame's checksum differs: damaged on the way"};
  if (extent.survivors > most) return {Code::mismatch, "frame has more survivors than expected"};
  used = extent.bytes;
  if (header.skipped) return step_skipped;
  out.indices.resize(extent.survivors);
  out.values.resize(extent.survivors);
  return decode_bodies(frame, header, extent.bodies, out);
}

Status read_directory(ConstBytes frame, FrameHeader& header, std::vector<ChunkInfo>& chunks,
                      std::size_t& used) {
  chunks.clear();
  used = 0;
  Extent extent;
  const Status measured = measure(frame, header, extent,
                                  [&chunks](const ChunkInfo& chunk) { chunks.push_back(chunk); });
  if (!measured.ok()) return measured;
  used = extent.bytes;
  return header.skipped ? step_skipped : Status{};
}

}  // namespace thinwire
