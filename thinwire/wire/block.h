// block.h: a frame whose payload is one block of a codec's bytes. Dense quantisers (onebit, int8,
// qsgd, ...) use it.
//
//    0  20  header of frame.h; value coder and chunk extent are 0
//   20   4  payload bytes
//   24      payload
//
// A skipped frame is the header alone.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "thinwire/wire/frame.h"

namespace thinwire {

inline constexpr std::size_t block_header_bytes = frame_header_bytes + 4;

// The place of the payload in a frame. An encoder writes there, then calls seal_block().
inline Bytes block_payload(Bytes frame) { return frame.subspan(block_header_bytes); }

// The longest payload whose length fits into the frame.
inline constexpr std::size_t longest_block = 0xffffffff;

// Completes a frame whose payload is in place, and returns the length of the frame. With
// header.skipped the frame has no payload. Throws an Error when the payload is too long.
std::size_t seal_block(const FrameHeader& header, std::size_t payload_bytes, Bytes frame);

// Checks the frame at the start of `bytes` and finds its payload. Returns Code::skipped for a sound
// skipped frame.
Status open_block(ConstBytes bytes, FrameHeader& header, ConstBytes& payload);

}  // namespace thinwire
