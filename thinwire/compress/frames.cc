// frames.cc: headers compared, block frames opened.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/compress/frames.h"

#include "thinwire/wire/block.h"

namespace thinwire {

FrameHeader block_header(std::uint8_t scheme, const Bucket& bucket, std::uint64_t step) {
  FrameHeader header;
  header.scheme = scheme;
  header.bucket = bucket.id;
  header.step = static_cast<std::uint32_t>(step);
  header.elements = static_cast<std::uint32_t>(bucket.elements());
  return header;
}

const char* difference(const FrameHeader& got, const FrameHeader& expected) {
  if (got.scheme != expected.scheme) return "its frame is of another scheme";
  if (got.bucket != expected.bucket) return "its frame is of another bucket";
  if (got.step != expected.step) return "its frame is of another step";
  if (got.elements != expected.elements) return "its frame is of a bucket of another size";
  if (got.values != expected.values) return "its frame has other value codes";
  if (got.chunk_log2 != expected.chunk_log2) return "its frame has chunks of another size";
  return nullptr;
}

Status open_blocks(const Inbox& inbox, int world, const FrameHeader& expected,
                   std::vector<ConstBytes>& payloads) {
  payloads.resize(static_cast<std::size_t>(world));
  return open_frames(inbox, world, expected,
                     [&](std::size_t rank, ConstBytes slot, FrameHeader& got) {
                       return open_block(slot, got, payloads[rank]);
                     });
}

}  // namespace thinwire
