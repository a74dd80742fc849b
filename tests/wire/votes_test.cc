// votes_test.cc: votes of many chunks, byte by byte, and payloads that no encoder writes.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/wire/votes.h"

#include <gtest/gtest.h>

#include <vector>

namespace thinwire {
namespace {

void set_bit(std::vector<std::byte>& bits, std::size_t i) { bits[i / 8] |= std::byte{1} << i % 8; }

// Ten chunks and 13 elements; zeros only where a test sets them.
constexpr std::size_t elements = 10 * votes_chunk + 13;
constexpr std::size_t plane = (elements + 7) / 8;
constexpr std::size_t flags = 2;

struct Votes {
  std::vector<std::byte> zeros = std::vector<std::byte>(plane);
  std::vector<std::byte> payload = std::vector<std::byte>(votes_bound(elements));
  void seal() { payload.resize(seal_votes(elements, zeros, payload)); }
  Status open() const { return VoteReader().open(elements, payload); }
};

TEST(Votes, FlagsTakeABitPerChunk) {
  EXPECT_EQ(votes_signs_at(0), 0u);
  EXPECT_EQ(votes_signs_at(1), 1u);
  EXPECT_EQ(votes_signs_at(8 * votes_chunk), 1u);
  EXPECT_EQ(votes_signs_at(8 * votes_chunk + 1), 2u);
}

TEST(Votes, ChunksWithZerosAreFlagged) {
  Votes votes;
  for (const std::size_t chunk : {0u, 7u, 8u, 10u}) set_bit(votes.zeros, chunk * votes_chunk + 12);
  votes.seal();
  EXPECT_EQ(votes.payload.size(), flags + plane + 3 * votes_chunk / 8 + 2);
  EXPECT_EQ(votes.payload[0], std::byte{0b1000'0001});
  EXPECT_EQ(votes.payload[1], std::byte{0b0000'0101});
  VoteReader reader;
  ASSERT_TRUE(reader.open(elements, votes.payload).ok());
  for (std::size_t chunk = 0; chunk <= 10; ++chunk) {
    const VoteReader::Chunk read = reader.next();
    EXPECT_EQ(read.signs.size(), chunk < 10 ? votes_chunk / 8 : 2);
    const bool flagged = chunk == 0 || chunk == 7 || chunk == 8 || chunk == 10;
    ASSERT_EQ(read.zeros.size(), flagged ? read.signs.size() : 0) << chunk;
    if (flagged) {
      EXPECT_EQ(read.zeros[1], std::byte{1} << 4) << chunk;
    }
  }
}

TEST(Votes, PaddingOfTheLastChunkIsZero) {
  for (const std::size_t bit : {13u, 15u}) {
    Votes votes;
    set_bit(votes.zeros, 10 * votes_chunk);
    votes.seal();
    EXPECT_TRUE(votes.open().ok());
    votes.payload.back() |= std::byte{1} << bit % 8;
    EXPECT_EQ(votes.open().code, Code::bad_value) << bit;
  }
}

}  // namespace
}  // namespace thinwire
