// frames_cuda.h: block frames (wire/block.h) in device memory: sealed by one kernel, and opened,
// compared and checked by another. All calls only enqueue. Slots are multiples of 16 bytes.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "thinwire/compress/compressor.h"
#include "thinwire/compress/frame_sums.h"
#include "thinwire/core/buffer.h"
#include "thinwire/wire/block.h"

namespace thinwire {

// The bytes of a slot for frames with payloads of at most this length.
constexpr std::size_t block_slot_bytes(std::size_t payload) {
  return (block_header_bytes + payload + 15) / 16 * 16;
}

// A frame that is written: what the kernels of one step tell each other.
struct FrameState {
  std::uint32_t crc = 0;
  std::uint32_t done = 0;     // blocks that are done, for "the last one goes on"
  std::uint32_t unsound = 0;  // not 0: this bucket's gradient has an element beyond the limit
  std::uint32_t unused = 0;
  std::uint64_t payload = 0;  // its bytes, where they depend on the data
};

// A frame that was opened.
struct OpenedBlock {
  std::uint32_t crc = 0;  // of its payload, while blocks add to it
  std::uint32_t code = 0;
  std::uint32_t bytes = 0;  // of its payload
  std::uint32_t skipped = 0;
  std::uint32_t bad_value = 0;  // a decoder has met a number that no encoder writes
};

// One sum over the payloads of all ranks (frame_sums.cuh). A decoder that reads every line anyway
// adds it up; only when it is wrong each frame is looked at.
struct FrameCheck {
  std::uint32_t expected = 0, found = 0;
  std::uint32_t done = 0;
  std::uint32_t suspect = 0;    // not 0: some frame is damaged, skipped or of another kind
  std::uint32_t bad_value = 0;  // not 0: some frame has a bad value
};

// The payloads of all ranks, as kernels take them. They are all sound, or the verdict is that the
// step is void.
struct BlockPayloads {
  const std::byte* slots = nullptr;
  std::uint64_t slot_bytes = 0;
  OpenedBlock* opened = nullptr;
  Verdict* verdict = nullptr;
  std::uint32_t ranks = 0, bucket = 0;
  FrameCheck* check = nullptr;  // of glance()
};

// What the payloads of a scheme must look like.
struct BlockRule {
  std::size_t most = 0;         // bytes of the longest
  bool exact = true;            // all have that length
  Code wrong = Code::mismatch;  // what another length is called
};

// Writes and reads the frames of one bucket, and owns the memory for it.
class BlockFramesCuda {
 public:
  BlockFramesCuda(int ranks, const BlockRule& rule, Device device);

  // Encoders set `unsound` and, where it is not rule.most, `payload`; seal() resets them.
  FrameState* state() const { return state_.as<FrameState>(); }

  // Completes the frame whose payload is in place in `source`, which is `out` or a slot like it. A
  // skipped frame has no payload. Bytes behind the payload become zero.
  void seal(const FrameHeader& header, const BlockRule& rule, const std::byte* source, Bytes out,
            std::uint64_t* written, Stream stream) const;

  // Opens one frame per rank, compares each with `header`, and reports bad and skipped ones in the
  // verdict.
  BlockPayloads open(const FrameHeader& header, const BlockRule& rule, const Inbox& inbox,
                     Verdict* verdict, Stream stream) const;

  // The same in two parts, around a decoder that adds up FrameCheck::found and stops where a frame
  // is suspect. It sets bad_value where it meets one. settle() then finds out who is to blame.
  // `sums` is what the decoder goes by.
  BlockPayloads glance(const FrameHeader& header, const BlockRule& rule, const Inbox& inbox,
                       const block_frame::FrameSums& sums, Verdict* verdict, Stream stream) const;
  void settle(const FrameHeader& header, const BlockRule& rule, const Inbox& inbox,
              Verdict* verdict, Stream stream) const;

 private:
  void check_each(const FrameHeader& header, const BlockRule& rule, const Inbox& inbox,
                  Verdict* verdict, bool always, Stream stream) const;

  std::uint32_t ranks_;
  Buffer state_, opened_, check_;
  block_frame::FrameSums seal_;
};

}  // namespace thinwire
