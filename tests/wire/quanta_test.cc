// quanta_test.cc: blocks of quanta: both forms, read by our decoder and by the reference decoder,
// and what they refuse.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tests/wire/reference_decoder.h"
#include "tests/wire/support.h"
#include "thinwire/core/random.h"
#include "thinwire/wire/quanta.h"

namespace thinwire {
namespace {

struct QuantaBlock {
  explicit QuantaBlock(std::uint32_t count) : said(count), plus((count + 7) / 8), minus(plus) {}

  void set(std::size_t i, int sends) {
    said[i] = sends;
    (sends > 0 ? plus : minus)[i / 8] |= std::byte{1} << i % 8;
  }
  std::vector<std::byte> encode() const {
    std::vector<std::byte> out(2 * plus.size(), std::byte{0xa5});
    out.resize(quanta_encode(plus, minus, static_cast<std::uint32_t>(said.size()), out));
    return out;
  }

  std::vector<int> said;
  std::vector<std::byte> plus, minus;
};

// What our decoder makes of a block, and whether the reference agrees.
std::optional<std::vector<int>> decoded(ConstBytes bytes, std::uint32_t count) {
  std::vector<float> sum(count);
  const bool dense = bytes.size() == quanta_dense_bytes(count);
  const bool sound = dense ? quanta_dense_is_sound(bytes, count)
                           : quanta_add_sparse(bytes, count, 2, sum.data()).ok();
  const auto expected = reference::quanta(bytes, count);
  EXPECT_EQ(sound, expected.has_value());
  if (!sound || dense) return expected;
  std::vector<int> said;
  for (const float x : sum) said.push_back(static_cast<int>(x) / 2);
  EXPECT_TRUE(!expected || said == *expected);
  return said;
}

// One of `share` elements sends; the blocks are even, or all in a corner.
TEST(Quanta, BothDecodersReadWhatIsWritten) {
  for (const std::uint32_t count : {1u, 2u, 7u, 8u, 9u, 64u, 100u, 4095u, 16384u}) {
    for (const std::uint32_t share : {1u, 2u, 4u, 20u, 300u, 5000u}) {
      for (const bool corner : {false, true}) {
        QuantaBlock block(count);
        for (std::uint32_t i = corner ? count - count / 8 : 0; i < count; ++i)
          if (random_below(share, i, share) == 0)
            block.set(i, random_below(share + 1, i, 2) == 0 ? 1 : -1);
        const auto bytes = block.encode();
        const auto read = decoded(bytes, count);
        ASSERT_TRUE(read && *read == block.said) << count << " " << share << " " << corner;
      }
    }
  }
}

// One bit changed, or one byte more or less: both decoders answer alike.
TEST(Quanta, DecodersRefuseTheSame) {
  QuantaBlock block(300);
  for (std::uint32_t i = 7; i < 300; i += 31) block.set(i, i % 2 == 0 ? 1 : -1);
  const auto good = block.encode();
  ASSERT_LT(good.size(), quanta_dense_bytes(300));
  int refused = 0;
  for (std::size_t bit = 0; bit < 8 * good.size(); ++bit) {
    auto bad = good;
    bad[bit / 8] ^= std::byte{1} << bit % 8;
    refused += decoded(bad, 300).has_value() ? 0 : 1;
  }
  EXPECT_GT(refused, 10);
  auto longer = good;
  longer.push_back({});
  EXPECT_FALSE(decoded(longer, 300));
  EXPECT_FALSE(decoded(ConstBytes(good).first(good.size() - 1), 300));
}

TEST(Quanta, DenseBlocksHaveOneSignAndNoPadding) {
  const auto sound = [](unsigned a, unsigned b, unsigned c, unsigned d) {
    const std::byte block[] = {std::byte(a), std::byte(b), std::byte(c), std::byte(d)};
    EXPECT_EQ(quanta_dense_is_sound(block, 11), reference::quanta(block, 11).has_value());
    return quanta_dense_is_sound(block, 11);
  };
  EXPECT_TRUE(sound(0x0f, 7, 0xf0, 0));
  EXPECT_FALSE(sound(0x0f, 8, 0xf0, 0));
  EXPECT_FALSE(sound(0x0f, 7, 0xf0, 8));
  EXPECT_FALSE(sound(0x1f, 7, 0xf0, 0));
}

// At a hundredth: the entropy of places and signs, and three hundredths more; a length of two bytes
// is the payload's.
TEST(Quanta, SizeAtOnePercent) {
  std::size_t bits = 0, sent = 0;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    QuantaBlock block(quanta_block);
    for (std::uint32_t i = 0; i < quanta_block; ++i)
      if (random_below(seed, i, 100) == 0) {
        block.set(i, 1);
        ++sent;
      }
    bits += 8 * (block.encode().size() + 2);
  }
  EXPECT_LT(static_cast<double>(bits) / static_cast<double>(sent), 9.35);
}

}  // namespace
}  // namespace thinwire
