// frames.h: opens the frames of a gather, one per rank, and compares them with what this rank
// expects.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "thinwire/compress/compressor.h"
#include "thinwire/wire/frame.h"

namespace thinwire {

// The header of a block frame (wire/block.h) of this bucket and step.
FrameHeader block_header(std::uint8_t scheme, const Bucket& bucket, std::uint64_t step);

// Tells how the header of a sound frame differs from the expected one; null when it does not. The
// skipped flag is not compared.
const char* difference(const FrameHeader& got, const FrameHeader& expected);

// Calls open(rank, slot, header), which returns the status of that rank's frame, for every rank.
// Stops at the first frame that is damaged or of another kind than `expected`; inbox.culprit then
// names the rank. Returns Code::skipped when all frames are sound and one of them is skipped.
template <typename Open>
Status open_frames(const Inbox& inbox, int world, const FrameHeader& expected, const Open& open) {
  bool skipped = false;
  for (int rank = 0; rank < world; ++rank) {
    inbox.culprit = rank;
    FrameHeader got;
    const Status status = open(static_cast<std::size_t>(rank), inbox.slot(rank), got);
    if (!status.ok() && status.code != Code::skipped) return status;
    if (const char* what = difference(got, expected)) return {Code::mismatch, what};
    skipped = skipped || status.code == Code::skipped;
  }
  inbox.culprit = -1;
  return skipped ? Status{Code::skipped, "a rank's gradient was not finite"} : Status{};
}

// Opens every rank's block frame and finds its payload.
Status open_blocks(const Inbox& inbox, int world, const FrameHeader& expected,
                   std::vector<ConstBytes>& payloads);

}  // namespace thinwire
