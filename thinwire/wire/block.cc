// block.cc: frames around a codec's bytes.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/wire/block.h"

#include <cstring>

#include "thinwire/core/error.h"

namespace thinwire {

std::size_t seal_block(const FrameHeader& header, std::size_t payload_bytes, Bytes frame) {
  std::size_t length = frame_header_bytes;
  if (!header.skipped) {
    if (payload_bytes > longest_block)
      fail("bucket ", header.bucket, ": a frame holds at most ", longest_block, " bytes, got ",
           payload_bytes, "; use smaller buckets");
    const auto size = static_cast<std::uint32_t>(payload_bytes);
    std::memcpy(frame.data() + frame_header_bytes, &size, sizeof size);
    length = block_header_bytes + payload_bytes;
  }
  seal_frame(header, frame.first(length));
  return length;
}

Status open_block(ConstBytes bytes, FrameHeader& header, ConstBytes& payload) {
  payload = {};
  if (const Status status = read_header(bytes, header); !status.ok()) return status;
  if (header.values != ValueCoder::f32 || header.chunk_log2 != 0)
    return {Code::bad_value, "a block frame has neither value coder nor chunks"};
  std::size_t length = frame_header_bytes;
  if (!header.skipped) {
    if (bytes.size() < block_header_bytes)
      return {Code::truncated, "frame ends before its payload's length"};
    std::uint32_t size = 0;
    std::memcpy(&size, bytes.data() + frame_header_bytes, sizeof size);
    if (size > bytes.size() - block_header_bytes)
      return {Code::truncated, "frame ends inside its payload"};
    length = block_header_bytes + size;
  }
  if (!checksum_holds(bytes.first(length)))
    return {Code::bad_checksum, "frame's checksum differs: damaged on the way"};
  if (header.skipped) return {Code::skipped, "a gradient was not finite: the step is skipped"};
  payload = bytes.subspan(block_header_bytes, length - block_header_bytes);
  return {};
}

}  // namespace thinwire
