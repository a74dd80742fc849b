// frames_test.cc: the frames of a gather: which rank is at fault, and how its frame differs.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/compress/frames.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <string>

#include "thinwire/wire/block.h"

namespace thinwire {
namespace {

constexpr std::size_t slot = block_header_bytes + 4;
const Bucket bucket = Bucket::single(3, "w", 100);

// The frames of three ranks with a payload of four bytes. A test changes some of them.
struct Gathered {
  std::array<FrameHeader, 3> headers;
  std::vector<std::byte> bytes = std::vector<std::byte>(3 * slot);
  Inbox inbox;
  std::vector<ConstBytes> payloads;

  Gathered() { headers.fill(block_header(7, bucket, 5)); }

  Status open() {
    for (std::size_t rank = 0; rank < 3; ++rank) {
      const Bytes frame = std::span(bytes).subspan(rank * slot, slot);
      std::memset(block_payload(frame).data(), static_cast<int>(rank), 4);
      seal_block(headers[rank], 4, frame);
    }
    return open_again();
  }
  Status open_again() {
    inbox.data = bytes;
    inbox.slot_bytes = slot;
    return open_blocks(inbox, 3, block_header(7, bucket, 5), payloads);
  }
};

TEST(Frames, FindsEveryPayload) {
  Gathered gathered;
  ASSERT_TRUE(gathered.open().ok());
  EXPECT_EQ(gathered.inbox.culprit, -1);
  ASSERT_EQ(gathered.payloads.size(), 3u);
  for (std::size_t rank = 0; rank < 3; ++rank) {
    ASSERT_EQ(gathered.payloads[rank].size(), 4u);
    EXPECT_EQ(gathered.payloads[rank][0], std::byte(rank));
  }
}

TEST(Frames, NamesTheRankAndTheDifference) {
  const auto differs = [](auto change, const std::string& what) {
    Gathered gathered;
    change(gathered.headers[1]);
    gathered.headers[2].step = 9;  // the first rank that differs is named
    const Status status = gathered.open();
    EXPECT_EQ(status.code, Code::mismatch);
    EXPECT_EQ(gathered.inbox.culprit, 1);
    EXPECT_NE(std::string(status.what).find(what), std::string::npos) << status.what;
  };
  differs([](FrameHeader& header) { header.scheme = 8; }, "another scheme");
  differs([](FrameHeader& header) { header.bucket = 4; }, "another bucket");
  differs([](FrameHeader& header) { header.step = 6; }, "another step");
  differs([](FrameHeader& header) { header.elements = 99; }, "another size");
}

TEST(Frames, OneSkippedFrameSkipsTheStep) {
  Gathered gathered;
  gathered.headers[0].skipped = true;
  EXPECT_EQ(gathered.open().code, Code::skipped);
  EXPECT_EQ(gathered.inbox.culprit, -1);
}

TEST(Frames, DamageIsWorseThanASkippedFrame) {
  Gathered gathered;
  gathered.headers[0].skipped = true;
  ASSERT_EQ(gathered.open().code, Code::skipped);
  gathered.bytes[2 * slot + block_header_bytes] ^= std::byte{1};
  EXPECT_EQ(gathered.open_again().code, Code::bad_checksum);
  EXPECT_EQ(gathered.inbox.culprit, 2);
}

}  // namespace
}  // namespace thinwire
