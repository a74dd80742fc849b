// index_test.cc: index coders: round trips, rejected input, bounds, bits per index.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/wire/index.h"

#include <gtest/gtest.h>

#include <numeric>

#include "tests/wire/reference_decoder.h"
#include "tests/wire/support.h"
#include "thinwire/wire/bits.h"
#include "thinwire/wire/divide.h"
#include "thinwire/wire/golomb.h"

namespace thinwire {
namespace {

using Support = std::vector<std::uint32_t>;
constexpr IndexChoice all_choices[] = {IndexChoice::smallest, IndexChoice::golomb,
                                       IndexChoice::elias_fano, IndexChoice::gap};

struct CodedIndices {
  IndexCode code;
  std::vector<std::byte> bytes;
};

CodedIndices encode(const Support& support, std::uint32_t extent, IndexChoice choice) {
  CodedIndices out;
  out.bytes.resize(index_bound(support.size(), extent));
  out.code = index_encode(support, extent, choice, out.bytes);
  EXPECT_LE(out.code.bytes, out.bytes.size());
  out.bytes.resize(out.code.bytes);
  return out;
}

void expect_round_trip(const Support& support, std::uint32_t extent) {
  for (const IndexChoice choice : all_choices) {
    SCOPED_TRACE(testing::Message()
                 << support.size() << " of " << extent << ", choice " << static_cast<int>(choice));
    const CodedIndices coded = encode(support, extent, choice);
    Support out(support.size());
    const Status status = index_decode(coded.code, coded.bytes, extent, out);
    ASSERT_TRUE(status.ok()) << status.what;
    ASSERT_EQ(out, support);
    const auto slow = reference::indices(static_cast<unsigned>(coded.code.coder),
                                         coded.code.parameter, coded.bytes, extent, support.size());
    ASSERT_TRUE(slow.has_value());
    ASSERT_EQ(*slow, support);
  }
}

Support all_of(std::uint32_t extent) {
  Support out(extent);
  std::iota(out.begin(), out.end(), 0u);
  return out;
}

TEST(Bits, WriterAndReaderAgreeAtEveryWidthAndRoom) {
  for (std::size_t room = 1; room < 40; ++room) {
    std::vector<std::byte> bytes(room);
    BitWriter writer(bytes);
    std::vector<std::pair<std::uint64_t, unsigned>> written;
    for (std::uint64_t i = 0, bits = 0; bits < room * 8; ++i) {
      const auto most = static_cast<unsigned>(std::min<std::uint64_t>(56, room * 8 - bits));
      const unsigned width = 1 + random_below(room, i, most);
      written.emplace_back(random_at(7, i) >> (64 - width), width);
      writer.put(written.back().first, width);
      bits += width;
    }
    EXPECT_TRUE(writer.fits());
    BitReader reader(bytes);
    for (const auto& [value, width] : written) {
      ASSERT_EQ(reader.peek() & ((std::uint64_t{1} << width) - 1), value);
      reader.skip(width);
    }
    EXPECT_FALSE(reader.overrun());
    EXPECT_EQ(reader.peek(), 0u);
    reader.skip(1);
    EXPECT_TRUE(reader.overrun());
    writer.put(1, 1);
    EXPECT_FALSE(writer.fits());
  }
}

TEST(Divider, EqualsDivisionAtTheEdges) {
  for (std::uint64_t i = 0; i < 300; ++i) {
    const std::uint32_t random = static_cast<std::uint32_t>(random_at(5, i)) >> (i % 32);
    for (const std::uint32_t divisor :
         {std::max(1u, random), static_cast<std::uint32_t>(i + 1), ~random | 1u}) {
      const Divider divide(divisor);
      for (const std::uint32_t near :
           {0u, divisor, divisor * 2u, ~0u / divisor * divisor, ~0u, random})
        for (const std::uint32_t n : {near - 1, near, near + 1})
          ASSERT_EQ(divide.quotient(n), n / divisor) << n << " / " << divisor;
    }
  }
}

TEST(Index, RoundTripsAwkwardSupports) {
  for (const std::uint32_t extent : {1u, 2u, 3u, 7u, 8u, 9u, 63u, 64u, 65u, 1000u, 4097u}) {
    expect_round_trip(all_of(extent), extent);
    expect_round_trip({0}, extent);
    expect_round_trip({extent - 1}, extent);
    if (extent > 1) expect_round_trip({0, extent - 1}, extent);
    if (extent > 2) expect_round_trip({0, extent / 2, extent - 1}, extent);
    for (std::uint32_t count = 1; count <= extent; count += 1 + count / 2)
      expect_round_trip(uniform_support(extent, count, extent), extent);
  }
}

TEST(Index, RoundTripsLargeExtents) {
  for (const std::uint32_t extent : {(1u << 24) + 1, 1u << 31, ~0u}) {
    expect_round_trip({extent - 1}, extent);
    expect_round_trip({0, extent - 1}, extent);
    expect_round_trip({extent - 3, extent - 2, extent - 1}, extent);
    for (const std::size_t count : {3u, 100u, 5001u}) {
      expect_round_trip(uniform_support(3, count, extent), extent);
      expect_round_trip(clustered_support(4, count, extent), extent);
    }
  }
}

TEST(Index, BoundHoldsForHostileSupports) {
  for (const std::uint32_t extent : {1000u, 65536u, 1000003u}) {
    for (const std::uint32_t count : {1u, 2u, 10u, 333u, 999u}) {
      Support crowded(count);
      std::iota(crowded.begin(), crowded.end(), extent - count);
      expect_round_trip(crowded, extent);
      Support stretched(count);
      for (std::uint32_t i = 0; i < count; ++i) stretched[i] = extent / count * i;
      expect_round_trip(stretched, extent);
      expect_round_trip(clustered_support(1, count, extent), extent);
    }
  }
}

TEST(Index, BoundIsTight) {
  EXPECT_LE(8.0 * static_cast<double>(index_bound(1000, 1 << 20)) / 1000, 12.6);
  EXPECT_EQ(index_bound(0, 100), 0u);
}

TEST(Golomb, OnlyCanonicalDivisorsAreRead) {
  std::vector<std::byte> bytes{std::byte{1}};
  Support out(1);
  int canonical = 0;
  for (unsigned p = 0; p < 256; ++p) {
    const auto parameter = static_cast<std::uint8_t>(p);
    if (golomb_divisor(parameter) != 0) {
      ++canonical;
    } else {
      EXPECT_FALSE(index_decode({IndexCoder::golomb, parameter, 1}, bytes, 9, out).ok()) << p;
    }
  }
  EXPECT_EQ(canonical, 1 + 2 + 4 + 29 * 8);
}

TEST(Golomb, SearchFindsTheBestDivisor) {
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    const std::uint32_t extent = 1u << 20;
    const std::size_t count = 100u << (seed % 6);
    const Support support =
        seed < 6 ? uniform_support(seed, count, extent) : clustered_support(seed, count, extent);
    std::uint64_t best = ~std::uint64_t{0};
    for (unsigned p = 0; p < 200; ++p)
      if (golomb_divisor(static_cast<std::uint8_t>(p)) != 0)
        best = std::min(best, golomb_bits(support, static_cast<std::uint8_t>(p)));
    EXPECT_LE(static_cast<double>(golomb_plan(support, extent).bits),
              1.005 * static_cast<double>(best))
        << seed;
  }
}

TEST(Index, RefusesLeftoverBytesShortBytesAndPadding) {
  const std::uint32_t extent = 5000;
  const Support support = uniform_support(9, 37, extent);
  for (const IndexChoice choice : all_choices) {
    CodedIndices coded = encode(support, extent, choice);
    Support out(support.size());
    const IndexCode shorter{coded.code.coder, coded.code.parameter, coded.code.bytes - 1};
    EXPECT_FALSE(
        index_decode(shorter, std::span(coded.bytes).first(shorter.bytes), extent, out).ok());
    EXPECT_FALSE(index_decode(shorter, coded.bytes, extent, out).ok());
    EXPECT_FALSE(index_decode(coded.code, coded.bytes, support.back(), out).ok());
    for (const std::size_t wrong : {support.size() - 1, support.size() + 1}) {
      out.resize(wrong);
      EXPECT_FALSE(index_decode(coded.code, coded.bytes, extent, out).ok()) << wrong;
    }
    out.resize(support.size());
    coded.bytes.push_back(std::byte{0});
    const IndexCode longer{coded.code.coder, coded.code.parameter, coded.bytes.size()};
    EXPECT_FALSE(index_decode(longer, coded.bytes, extent, out).ok());
  }
}

TEST(Index, EveryFlippedBitIsRefusedOrGivesOtherIndices) {
  const std::uint32_t extent = 3000;
  const Support support = uniform_support(2, 21, extent);
  for (const IndexChoice choice : all_choices) {
    CodedIndices coded = encode(support, extent, choice);
    for (std::size_t bit = 0; bit < coded.bytes.size() * 8; ++bit) {
      coded.bytes[bit / 8] ^= std::byte{1} << (bit % 8);
      Support out(support.size());
      if (index_decode(coded.code, coded.bytes, extent, out).ok()) {
        EXPECT_NE(out, support) << bit;
      }
      coded.bytes[bit / 8] ^= std::byte{1} << (bit % 8);
    }
  }
}

TEST(EliasFano, RefusesIndicesOutOfOrder) {
  // Two indices, four low bits each: 5 then 3, both with high part 0.
  const std::vector<std::byte> falling{std::byte{0x35}, std::byte{0x03}};
  const std::vector<std::byte> rising{std::byte{0x53}, std::byte{0x03}};
  Support out(2);
  EXPECT_TRUE(index_decode({IndexCoder::elias_fano, 4, 2}, rising, 16, out).ok());
  EXPECT_EQ(out, (Support{3, 5}));
  EXPECT_FALSE(index_decode({IndexCoder::elias_fano, 4, 2}, falling, 16, out).ok());
}

// log2 of the number of supports: no code can be shorter on average.
double entropy_bits(double n, double k) {
  return (std::lgamma(n + 1) - std::lgamma(k + 1) - std::lgamma(n - k + 1)) / std::log(2.0);
}

TEST(IndexSize, IsNearTheEntropyOfUniformSupports) {
  const std::uint32_t extent = 1u << 24;
  for (const double density : {1e-4, 1e-3, 1e-2, 1e-1}) {
    const auto count = static_cast<std::size_t>(density * extent);
    const Support support = uniform_support(11, count, extent);
    const double entropy = entropy_bits(extent, static_cast<double>(count));
    for (const IndexChoice choice :
         {IndexChoice::golomb, IndexChoice::elias_fano, IndexChoice::gap}) {
      const double ratio =
          8.0 * static_cast<double>(encode(support, extent, choice).code.bytes) / entropy;
      EXPECT_LE(ratio, choice == IndexChoice::elias_fano ? 1.13 : 1.015) << density;
    }
  }
}

TEST(IndexSize, GapGoesBelowGolombWhereSurvivorsCluster) {
  const std::uint32_t extent = 1u << 20;
  const Support support = clustered_support(1, 1000, extent);
  const CodedIndices golomb = encode(support, extent, IndexChoice::golomb);
  const CodedIndices gap = encode(support, extent, IndexChoice::gap);
  EXPECT_EQ(gap.code.coder, IndexCoder::gap);
  EXPECT_LT(gap.code.bytes, golomb.code.bytes * 8 / 10);
  EXPECT_LE(encode(support, extent, IndexChoice::smallest).code.bytes, gap.code.bytes);
}

}  // namespace
}  // namespace thinwire
