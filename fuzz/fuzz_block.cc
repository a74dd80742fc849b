// fuzz_block.cc: opening a block frame never over-reads, and an opened frame seals to
// the same bytes.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include "fuzz/fuzz.h"
#include "thinwire/core/crc32c.h"
#include "thinwire/wire/block.h"

namespace thinwire {
namespace {

void check(ConstBytes bytes) {
  FrameHeader header;
  ConstBytes payload;
  const Status status = open_block(bytes, header, payload);
  if (!status.ok() && status.code != Code::skipped) {
    fuzz::require(payload.empty(), "what does not open has no payload");
    return;
  }
  std::vector<std::byte> again(block_header_bytes + payload.size());
  std::copy(payload.begin(), payload.end(), block_payload(again).begin());
  const std::size_t length = seal_block(header, payload.size(), again);
  fuzz::require(length <= bytes.size(), "the payload lies inside the bytes");
  fuzz::require(
      std::equal(again.begin(), again.begin() + static_cast<std::ptrdiff_t>(length), bytes.begin()),
      "a frame has one spelling");
}

// Puts the correct checksum into the frame, if its length is known.
void repair(std::span<std::byte> bytes) {
  if (bytes.size() < block_header_bytes) return;
  std::uint32_t size = 0;
  std::memcpy(&size, bytes.data() + frame_header_bytes, sizeof size);
  const bool skipped = (bytes[4] & std::byte{1}) != std::byte{0};
  if (!skipped && size > bytes.size() - block_header_bytes) return;
  const std::size_t length = skipped ? frame_header_bytes : block_header_bytes + size;
  const ConstBytes frame = bytes.first(length);
  const std::uint32_t crc = crc32c(frame.subspan(20), crc32c(frame.first(16)));
  std::memcpy(bytes.data() + 16, &crc, sizeof crc);
}

}  // namespace
}  // namespace thinwire

// Input: a frame. It is tried unchanged, and with its checksum repaired.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace thinwire;
  const ConstBytes bytes = std::as_bytes(std::span(data, size));
  check(bytes);
  std::vector<std::byte> repaired(bytes.begin(), bytes.end());
  repair(repaired);
  check(repaired);
  return 0;
}
