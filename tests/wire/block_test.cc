// block_test.cc: frames around a codec's bytes: round trips, damage, and the
// document's golden frame.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/wire/block.h"

#include <gtest/gtest.h>

#include <cstring>

#include "tests/wire/support.h"
#include "thinwire/kernels/int8.h"

namespace thinwire {
namespace {

using Frame = std::vector<std::byte>;

FrameHeader header_of(bool skipped) { return {17, skipped, ValueCoder::f32, 0, 5, 100, 5}; }

Frame seal(const FrameHeader& header, std::size_t payload_bytes) {
  Frame frame(block_header_bytes + payload_bytes);
  for (std::size_t i = 0; i < payload_bytes; ++i)
    block_payload(frame)[i] = static_cast<std::byte>(i + 1);
  frame.resize(seal_block(header, payload_bytes, frame));
  return frame;
}

Status open(ConstBytes bytes) {
  FrameHeader header;
  ConstBytes payload;
  return open_block(bytes, header, payload);
}

TEST(Block, RoundTrips) {
  for (const std::size_t size : {0u, 1u, 7u, 1000u}) {
    Frame slot = seal(header_of(false), size);
    ASSERT_EQ(slot.size(), block_header_bytes + size);
    slot.resize(slot.size() + 9, std::byte{0xa5});  // a frame may be in a longer slot
    FrameHeader header;
    ConstBytes payload;
    ASSERT_TRUE(open_block(slot, header, payload).ok());
    EXPECT_EQ(header, header_of(false));
    ASSERT_EQ(payload.size(), size);
    for (std::size_t i = 0; i < size; ++i) ASSERT_EQ(payload[i], static_cast<std::byte>(i + 1));
  }
}

TEST(Block, SkippedIsAHeaderAndAnAnswer) {
  const Frame frame = seal(header_of(true), 3);
  EXPECT_EQ(frame.size(), frame_header_bytes);
  FrameHeader header;
  ConstBytes payload;
  EXPECT_EQ(open_block(frame, header, payload).code, Code::skipped);
  EXPECT_EQ(header, header_of(true));
  EXPECT_TRUE(payload.empty());
}

TEST(Block, EveryFlippedBitAndEveryTruncationIsDetected) {
  for (const bool skipped : {false, true}) {
    Frame frame = seal(header_of(skipped), 11);
    const Code code = open(frame).code;
    EXPECT_EQ(code, skipped ? Code::skipped : Code::ok);
    for (std::size_t bit = 0; bit < frame.size() * 8; ++bit) {
      frame[bit / 8] ^= std::byte{1} << (bit % 8);
      EXPECT_NE(open(frame).code, code) << bit;
      frame[bit / 8] ^= std::byte{1} << (bit % 8);
    }
    for (std::size_t length = 0; length < frame.size(); ++length)
      EXPECT_FALSE(open(std::span(frame).first(length)).ok()) << length;
  }
}

TEST(Block, RefusesSparseHeadersAndLongLengths) {
  Frame frame = seal(header_of(false), 11);
  frame[5] = std::byte{0x35};  // a value coder and chunks
  repair(frame);
  EXPECT_EQ(open(frame).code, Code::bad_value);
  frame = seal(header_of(false), 11);
  const std::uint32_t wrong = ~0u;  // would wrap if lengths were added
  std::memcpy(frame.data() + frame_header_bytes, &wrong, sizeof wrong);
  repair(frame);
  EXPECT_EQ(open(frame).code, Code::truncated);
}

// These bytes are tests/wire/golden/block.hex and the block of that name in docs/wire_format.md.
TEST(Block, GoldenFrame) {
  const std::string golden = read_text("tests/wire/golden/block.hex");
  const float x[] = {0, 255, 128, 3, 64};
  Frame frame(block_header_bytes + int8_bytes({}, 5));
  int8_encode({}, x, nullptr, 5, {}, 0,
              reinterpret_cast<std::uint8_t*>(block_payload(frame).data()));
  seal_block(header_of(false), int8_bytes({}, 5), frame);
  EXPECT_EQ(to_hex(frame), golden);
  EXPECT_NE(read_text("docs/wire_format.md").find("```hex block\n" + golden + "```"),
            std::string::npos);
}

}  // namespace
}  // namespace thinwire
