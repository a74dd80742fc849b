// block.h: a frame whose payload is one block of bytes that a codec understands: the header of
// frame.h, the payload's length, the payload. Dense quantisers (1-bit, int8, QSGD, ...) travel so.
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

// Where an encoder puts the payload before it seals the frame.
inline Bytes block_payload(Bytes frame) { return frame.subspan(block_header_bytes); }

// The longest payload that a frame can tell the length of.
inline constexpr std::size_t longest_block = 0xffffffff;

// Completes a frame whose payload is in place; returns the frame's length. With header.skipped the
// payload is left out. Throws an Error when the payload is too long.
std::size_t seal_block(const FrameHeader& header, std::size_t payload_bytes, Bytes frame);

// Checks the frame at the start of `bytes` and finds its payload. Answers Code::skipped for a sound
// skipped frame.
Status open_block(ConstBytes bytes, FrameHeader& header, ConstBytes& payload);

}  // namespace thinwire
