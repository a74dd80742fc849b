// edges_test.cc: lengths beyond what memory holds, builds without a GPU, and syntax at its edge.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <utility>

#include "tests/gradients.h"
#include "thinwire/core/buffer.h"
#include "thinwire/core/crc32c.h"
#include "thinwire/core/options.h"
#include "thinwire/core/view.h"

namespace thinwire::edges {

using testing::error_of;

// Pieces of 2^k bytes, for every k that a length has: two shifts are one of twice the length.
TEST(Crc32c, CombinesPiecesOfEveryLength) {
  const std::uint32_t crc = 0xe3069283u;
  for (int k = 0; k < 63; ++k) {
    const std::uint64_t half = std::uint64_t{1} << k;
    EXPECT_EQ(crc32c_combine(crc32c_combine(crc, 0, half), 0, half),
              crc32c_combine(crc, 0, 2 * half))
        << k;
    EXPECT_NE(crc32c_combine(crc, 0, 2 * half), 0u) << k;
  }
}

TEST(Buffer, OfNoBytesHasNoMemory) {
  EXPECT_EQ(Buffer(Place::host, 0).data(), nullptr);
  EXPECT_EQ(Buffer(Place::host, 0).size(), 0u);
  EXPECT_NE(Buffer(Place::host, 1).data(), nullptr);
}

TEST(Buffer, KeepsItsPlaceWhenItMoves) {
  Buffer from(Place::pinned, 0);  // of no bytes: it needs no GPU
  Buffer to(Place::host, 16);
  to = std::move(from);
  EXPECT_EQ(to.place(), Place::pinned);
  EXPECT_EQ(to.size(), 0u);
  EXPECT_EQ(Buffer().place(), Place::host);
  EXPECT_EQ(Buffer().size(), 0u);
}

// Whoever asks first is never told otherwise later.
TEST(Buffer, CudaIsThereOrEveryUseOfItIsAnError) {
  const bool works = error_of([] { Buffer(Place::cuda, 64); }).empty();
  EXPECT_EQ(has_cuda(), works);
  if (works) return;
  std::byte byte{};
  EXPECT_NE(error_of([&] { copy_bytes(&byte, &byte, 1, {}); }), "");
  EXPECT_NE(error_of([&] { zero_bytes(&byte, 1, {}); }), "");
  EXPECT_NE(error_of([] { Event event{Device{Device::Kind::cuda, 0}}; }), "");
}

TEST(Config, ListsMayEndWithACommaAndNotBeginWithOne) {
  EXPECT_EQ(Config::parse("s:a=1,").str(), "s:a=1");
  EXPECT_EQ(Config::parse("s:").str(), "s");
  EXPECT_EQ(Config::parse("s:a=b=c").options.at("a"), "b=c");
  EXPECT_NE(error_of([] { (void)Config::parse("s:,a=1"); }).find("got ''"), std::string::npos);
  EXPECT_NE(error_of([] { (void)Config::parse("s:a=1,,b=2"); }).find("got ''"), std::string::npos);
}

// What a caller handed in wrongly is told with all its numbers.
TEST(View, ErrorsNameWhoAndHowMany) {
  std::vector<float> values(3);
  EXPECT_EQ(error_of([&] { require_f32_cpu(values, 2, "dgc, bucket 4"); }),
            "dgc, bucket 4: expected 2 elements, got 3; pass the bucket with the layout it was set "
            "up with");
  EXPECT_EQ(error_of([] {
              validate(Bucket{7, {{"a", 0, 5, {}}, {"b", 4, 2, {}}}});
            }),
            "bucket 7, parameter 'b': expected offset 5, got 4; list parameters in order, without "
            "gaps");
}

}  // namespace thinwire::edges
