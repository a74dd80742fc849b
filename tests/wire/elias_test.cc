// elias_test.cc: levels in Elias codes: round trips, a unique encoding, the size given in
// the QSGD paper.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/wire/elias.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "tests/wire/support.h"
#include "thinwire/kernels/qsgd.h"

namespace thinwire {
namespace {

struct Levels {
  std::vector<std::uint8_t> levels, signs;
  bool operator==(const Levels&) const = default;
};

// Every `sparsity`-th level is not zero, on average.
Levels make_levels(std::size_t count, unsigned bits, std::uint32_t sparsity) {
  Levels made{std::vector<std::uint8_t>(count), std::vector<std::uint8_t>((count + 7) / 8)};
  for (std::size_t i = 0; i < count; ++i) {
    if (random_below(count, 3 * i, sparsity) != 0) continue;
    made.levels[i] = static_cast<std::uint8_t>(1 + random_below(bits, 3 * i + 1, (1u << bits) - 1));
    const unsigned sign = random_below(7, 3 * i + 2, 2) << (i % 8);
    made.signs[i / 8] = static_cast<std::uint8_t>(made.signs[i / 8] | sign);
  }
  return made;
}

std::vector<std::byte> encode(const Levels& made, unsigned bits) {
  std::vector<std::byte> out(elias_bound(made.levels.size(), bits));
  const std::size_t bytes =
      elias_encode(made.levels.data(), made.signs.data(), made.levels.size(), out);
  EXPECT_LE(bytes, out.size());
  out.resize(bytes);
  return out;
}

Status decode(ConstBytes bytes, std::size_t count, unsigned bits, Levels& out, std::size_t& used) {
  out = {std::vector<std::uint8_t>(count), std::vector<std::uint8_t>((count + 7) / 8)};
  return elias_decode(bytes, count, (1u << bits) - 1, out.levels.data(), out.signs.data(), used);
}

TEST(Elias, RoundTrips) {
  for (unsigned bits = 1; bits <= 8; ++bits) {
    for (const std::size_t count : {1u, 2u, 3u, 8u, 63u, 64u, 511u, 512u, 8192u}) {
      for (const std::uint32_t sparsity : {1u, 2u, 30u, 1000000u}) {
        const Levels made = make_levels(count, bits, sparsity);
        std::vector<std::byte> bytes = encode(made, bits);
        const std::size_t length = bytes.size();
        bytes.resize(length + 3, std::byte{0xff});
        Levels back;
        std::size_t used = 0;
        ASSERT_TRUE(decode(bytes, count, bits, back, used).ok());
        ASSERT_EQ(used, length);
        ASSERT_EQ(back, made);
        for (std::size_t cut = 0; cut < std::min<std::size_t>(length, 20); ++cut)
          ASSERT_FALSE(decode(ConstBytes(bytes).first(cut), count, bits, back, used).ok());
      }
    }
  }
}

TEST(Elias, RefusesWhatIsNotALevel) {
  Levels back;
  std::size_t used = 0;
  const Levels three{{3}, {0}};
  EXPECT_TRUE(decode(encode(three, 2), 1, 2, back, used).ok());
  EXPECT_FALSE(decode(encode(three, 2), 1, 1, back, used).ok());  // above the top level
  const Levels late{{0, 0, 0, 1}, {0}};
  EXPECT_FALSE(decode(encode(late, 1), 2, 1, back, used).ok());  // beyond the end
  std::vector<std::byte> bytes = encode(three, 2);
  bytes.back() |= std::byte{0x80};  // padding
  EXPECT_FALSE(decode(bytes, 1, 2, back, used).ok());
  EXPECT_FALSE(decode({}, 1, 1, back, used).ok());
}

// docs/wire_format.md works this example.
TEST(Elias, Example) {
  const Levels made{{0, 0, 5, 1, 0, 0}, {0x04}};
  EXPECT_EQ(to_hex(encode(made, 3)), "ce 6a\n");
}

// Theorem 3.2: with s levels and n elements at most (3 + 1.5 log2(2 (s^2 + n) / (s (s + sqrt n))))
// s (s + sqrt n) bits beside the norm, for the omega code.
TEST(Elias, IsWithinTheBoundOfThePaper) {
  for (const unsigned bits : {1u, 2u, 3u}) {
    const QsgdRule rule{512, bits, false};
    const double n = 512, s = (1 << bits) - 1, sent = s * (s + std::sqrt(n));
    double total = 0;
    for (std::uint64_t seed = 0; seed < 50; ++seed) {
      const auto x = tail_values(seed, 512);
      Levels made{std::vector<std::uint8_t>(512), std::vector<std::uint8_t>(64)};
      float norm = 0;
      ASSERT_TRUE(qsgd_quantise(rule, x.data(), nullptr, 512, draw_key(seed), 0, norm,
                                made.levels.data(), made.signs.data()));
      total += 8.0 * static_cast<double>(encode(made, bits).size()) / 50;
    }
    EXPECT_LE(total, (3 + 1.5 * std::log2(2 * (s * s + n) / sent)) * sent) << bits;
    std::printf("bits %u: %.1f bits per bucket of 512, packed %d\n", bits, total,
                512 * (static_cast<int>(bits) + 1));
  }
}

}  // namespace
}  // namespace thinwire
