// far_test.cc: gaps that the first model of the gap coder takes for impossible, several of each
// length, so that the model learns where it knew nothing.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tests/wire/reference_decoder.h"
#include "thinwire/wire/index.h"

namespace thinwire::far {

TEST(Gap, ImprobableGapsAreCodedAsTheDocumentSays) {
  for (const std::uint32_t extent : {~0u, 1u << 31, 1u << 24}) {
    for (const std::uint32_t far : {extent >> 4, extent >> 3, extent >> 2, (extent >> 3) + 12345}) {
      std::vector<std::uint32_t> support(3000);
      for (std::uint32_t i = 0; i < 3000; ++i) support[i] = i;
      while (support.back() < extent - far) support.push_back(support.back() + far);
      std::vector<std::byte> bytes(index_bound(support.size(), extent));
      const IndexCode code = index_encode(support, extent, IndexChoice::gap, bytes);
      ASSERT_EQ(code.coder, IndexCoder::gap);
      const auto found =
          reference::indices(2, 0, std::span(bytes).first(code.bytes), extent, support.size());
      ASSERT_TRUE(found.has_value()) << extent << " " << far;
      EXPECT_EQ(*found, support);
    }
  }
}

// An even support: Elias-Fano takes three bytes, Golomb four.
TEST(Index, TheChoiceOfACoderIsKept) {
  const std::vector<std::uint32_t> even = {2, 5, 9, 12, 15, 19};
  const auto code_by = [&](IndexChoice choice) {
    std::vector<std::byte> bytes(index_bound(even.size(), 2048));
    return index_encode(even, 2048, choice, bytes);
  };
  EXPECT_EQ(code_by(IndexChoice::golomb).coder, IndexCoder::golomb);
  EXPECT_EQ(code_by(IndexChoice::golomb).bytes, 4u);
  EXPECT_EQ(code_by(IndexChoice::elias_fano).coder, IndexCoder::elias_fano);
  EXPECT_EQ(code_by(IndexChoice::elias_fano).bytes, 3u);
  EXPECT_NE(code_by(IndexChoice::gap).coder, IndexCoder::elias_fano);
  EXPECT_LE(code_by(IndexChoice::smallest).bytes, 3u);
}

}  // namespace thinwire::far
