// pinned_test.cc: checksums of what encoders write for many supports and values, and of the bounds
// that slots are sized by: another choice of bytes, good or bad, shows as a diff here. And damaged
// bytes, which decoders must judge as the reference decoder does.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>

#include "tests/wire/reference_decoder.h"
#include "tests/wire/support.h"
#include "thinwire/wire/elias.h"
#include "thinwire/wire/frame.h"
#include "thinwire/wire/golomb.h"

namespace thinwire::pinned {

using Support = std::vector<std::uint32_t>;

// A checksum over everything that was added.
struct Sum {
  std::uint32_t crc = 0;
  void add(ConstBytes bytes) { crc = crc32c(bytes, crc); }
  void add(std::uint64_t number) { add(std::as_bytes(std::span(&number, 1))); }
};

struct Case {
  Support support;
  std::uint32_t extent;
};

static std::vector<Case> cases() {
  std::vector<Case> all;
  for (const std::uint32_t extent : {1u, 2u, 9u, 64u, 1000u, 4097u, 65536u, 1000003u, ~0u}) {
    for (std::uint32_t count = 1; count <= 3000 && count <= extent; count = 2 * count + 1) {
      all.push_back({uniform_support(count, count, extent), extent});
      all.push_back({clustered_support(count, count, extent), extent});
      Support crowd(count);
      for (std::uint32_t i = 0; i < count; ++i) crowd[i] = extent - count + i;
      all.push_back({crowd, extent});
    }
  }
  return all;
}

// Exact in every step, so that no library of mathematics has a say: about 2^(random exponent).
static std::vector<float> values_of(std::uint64_t seed, std::size_t count, int spread) {
  std::vector<float> out(count);
  for (std::size_t i = 0; i < count; ++i) {
    const int exponent =
        static_cast<int>(random_below(seed, 3 * i, static_cast<std::uint32_t>(2 * spread + 1))) -
        spread;
    out[i] = std::ldexp(1 + random_unit(seed, 3 * i + 1), exponent);
    if (random_at(seed, 3 * i + 2) & 1u) out[i] = -out[i];
  }
  return out;
}

TEST(Pinned, IndexCodersWriteTheseBytes) {
  const std::pair<IndexChoice, std::uint32_t> expected[] = {{IndexChoice::smallest, 3309601040u},
                                                            {IndexChoice::golomb, 1795696909u},
                                                            {IndexChoice::elias_fano, 3289801724u},
                                                            {IndexChoice::gap, 3309601040u}};
  for (const auto& [choice, crc] : expected) {
    Sum sum;
    for (const auto& [support, extent] : cases()) {
      std::vector<std::byte> out(index_bound(support.size(), extent));
      const IndexCode code = index_encode(support, extent, choice, out);
      sum.add(static_cast<std::uint64_t>(code.coder) << 8 | code.parameter);
      sum.add(std::span(out).first(code.bytes));
    }
    EXPECT_EQ(sum.crc, crc) << static_cast<int>(choice);
  }
}

TEST(Pinned, ValueCodersWriteTheseBytes) {
  const std::uint32_t expected[] = {2524573212u, 466410571u,  2845814041u,
                                    3384561454u, 3413006851u, 622861059u};
  for (unsigned coder = 0; coder < value_coder_count; ++coder) {
    Sum sum;
    for (const int spread : {0, 1, 3, 20, 126}) {
      for (const std::size_t count : {1u, 2u, 3u, 8u, 9u, 1000u}) {
        std::vector<float> values = values_of(count, count, spread);
        if (spread == 126) values[0] = std::ldexp(3.0f, -149);  // a subnormal
        std::vector<std::byte> out(value_bytes(static_cast<ValueCoder>(coder), count));
        value_encode(static_cast<ValueCoder>(coder), values, out);
        sum.add(out);
        sum.add(std::as_bytes(std::span(values)));
      }
    }
    EXPECT_EQ(sum.crc, expected[coder]) << coder;
  }
}

TEST(Pinned, FramesAreCutAndBoundedLikeThis) {
  Sum bytes, bounds;
  for (const auto& [support, extent] : cases()) {
    for (unsigned coder = 0; coder < value_coder_count; ++coder) {
      const FrameHeader header{
          3,  false, static_cast<ValueCoder>(coder), chunk_log2_for(extent, support.size()), 7,
          41, extent};
      for (const std::size_t survivors : {std::size_t{0}, std::size_t{1}, support.size()})
        bounds.add(sparse_frame_bound(header, survivors));
      bounds.add(index_bound(support.size(), extent));
      std::vector<std::byte> out(sparse_frame_bound(header, support.size()));
      std::vector<float> values = values_of(1, support.size(), 3);
      bytes.add(
          std::span(out).first(encode_sparse(header, support, values, IndexChoice::smallest, out)));
    }
  }
  EXPECT_EQ(bytes.crc, 144267097u);
  EXPECT_EQ(bounds.crc, 2084498079u);
}

TEST(Pinned, LevelsAreWrittenLikeThis) {
  Sum sum;
  for (const unsigned bits : {1u, 2u, 8u}) {
    for (const std::size_t count : {1u, 7u, 8u, 513u, 8192u}) {
      for (const std::uint32_t sparsity : {1u, 3u, 1000u}) {
        std::vector<std::uint8_t> levels(count), signs((count + 7) / 8);
        for (std::size_t i = 0; i < count; ++i) {
          if (random_below(count, 3 * i, sparsity) != 0) continue;
          levels[i] =
              static_cast<std::uint8_t>(1 + random_below(bits, 3 * i + 1, (1u << bits) - 1));
          if (random_at(7, i) & 1u)
            signs[i / 8] = static_cast<std::uint8_t>(signs[i / 8] | 1u << (i % 8));
        }
        std::vector<std::byte> out(elias_bound(count, bits));
        sum.add(out.size());
        sum.add(std::span(out).first(elias_encode(levels.data(), signs.data(), count, out)));
      }
    }
  }
  EXPECT_EQ(sum.crc, 3680580112u);
}

// ---- decoders against the reference ----

static void damage(std::vector<std::byte>& bytes, std::uint64_t trial) {
  const auto draw = [&](std::uint64_t i, std::size_t below) {
    return random_below(trial, i, static_cast<std::uint32_t>(below));
  };
  if (draw(0, 8) == 0) bytes.push_back(static_cast<std::byte>(draw(1, 256)));
  if (draw(2, 8) == 0 && !bytes.empty()) bytes.pop_back();
  if (bytes.empty()) return;
  if (draw(3, 4) == 0) bytes[draw(4, bytes.size())] = static_cast<std::byte>(draw(5, 256));
  for (std::uint64_t i = draw(6, 3); i > 0; --i)
    bytes[draw(6 + 2 * i, bytes.size())] ^= std::byte{1} << draw(7 + 2 * i, 8);
}

TEST(Damaged, IndicesAreJudgedAsByTheReference) {
  const std::uint32_t extents[] = {1, 5, 16, 100, 1000, 70000, 1u << 31, ~0u};
  std::size_t accepted = 0;
  for (std::uint64_t trial = 0; trial < 30000; ++trial) {
    std::uint32_t extent = extents[random_below(trial, 100, 8)];
    std::size_t count = 1 + random_below(trial, 101, std::min(extent, 12u));
    const auto choice = static_cast<IndexChoice>(1 + random_below(trial, 102, 3));
    std::vector<std::byte> bytes(index_bound(count, extent));
    IndexCode code = index_encode(uniform_support(trial, count, extent), extent, choice, bytes);
    bytes.resize(code.bytes);
    damage(bytes, trial);
    if (random_below(trial, 103, 6) == 0)
      code.parameter = static_cast<std::uint8_t>(random_below(trial, 104, 40));
    if (random_below(trial, 105, 6) == 0) --extent;
    if (random_below(trial, 106, 6) == 0)
      count = random_below(trial, 107, 2) == 0 ? count + 1 : count - 1;
    code.bytes = bytes.size();
    Support out(count);
    const Status status = index_decode(code, bytes, extent, out);
    const auto expected =
        reference::indices(static_cast<unsigned>(code.coder), code.parameter, bytes, extent, count);
    ASSERT_EQ(status.ok(), expected.has_value()) << trial << ": " << status.what;
    if (expected) {
      ASSERT_EQ(out, *expected) << trial;
    }
    accepted += expected.has_value();
  }
  EXPECT_GT(accepted, 5000u);
  EXPECT_LT(accepted, 25000u);
}

TEST(Damaged, ValuesAreJudgedAsByTheReference) {
  std::size_t accepted = 0;
  for (std::uint64_t trial = 0; trial < 20000; ++trial) {
    const auto coder = static_cast<ValueCoder>(random_below(trial, 100, 6));
    const std::size_t count = 1 + random_below(trial, 101, 9);
    std::vector<float> values = values_of(trial, count, 126);
    std::vector<std::byte> bytes(value_bytes(coder, count));
    value_encode(coder, values, bytes);
    damage(bytes, trial);
    std::vector<float> out(count);
    const Status status = value_decode(coder, bytes, out);
    const auto expected = reference::values(static_cast<unsigned>(coder), bytes, count);
    ASSERT_EQ(status.ok(), expected.has_value()) << trial << ": " << status.what;
    for (std::size_t i = 0; expected && i < count; ++i)
      ASSERT_EQ(std::bit_cast<std::uint32_t>(out[i]), std::bit_cast<std::uint32_t>((*expected)[i]));
    accepted += expected.has_value();
  }
  EXPECT_GT(accepted, 5000u);
  EXPECT_LT(accepted, 18000u);
}

// With a checksum that fits, so that decoders look further.
TEST(Damaged, FramesAreJudgedAsByTheReference) {
  std::size_t accepted = 0;
  for (std::uint64_t trial = 0; trial < 20000; ++trial) {
    const std::uint32_t elements = 1 + random_below(trial, 100, 900);
    const auto count = random_below(trial, 101, std::min(elements, 20u));
    const FrameHeader header{3,
                             random_below(trial, 102, 20) == 0,
                             static_cast<ValueCoder>(random_below(trial, 103, 6)),
                             static_cast<std::uint8_t>(4 + random_below(trial, 104, 7)),
                             7,
                             41,
                             elements};
    const Support support = uniform_support(trial, header.skipped ? 0 : count, elements);
    std::vector<float> values = values_of(trial, support.size(), 3);
    std::vector<std::byte> frame(sparse_frame_bound(header, support.size()));
    const auto choice = static_cast<IndexChoice>(random_below(trial, 105, 4));
    frame.resize(encode_sparse(header, support, values, choice, frame));
    damage(frame, trial);
    if (frame.size() >= frame_header_bytes) repair(frame);
    FrameHeader got;
    Sparse out;
    std::size_t used = 0;
    const Status status = decode_sparse(frame, 1000, got, out, used);
    const auto expected = reference::frame(frame);
    ASSERT_EQ(status.ok() || status.code == Code::skipped, expected.has_value())
        << trial << ": " << status.what;
    if (!expected) continue;
    ++accepted;
    ASSERT_EQ(status.code == Code::skipped, expected->skipped) << trial;
    ASSERT_EQ(used, expected->bytes) << trial;
    ASSERT_EQ(out.indices, expected->indices) << trial;
    ASSERT_EQ(out.values, expected->values) << trial;
  }
  EXPECT_GT(accepted, 5000u);
  EXPECT_LT(accepted, 18000u);
}

}  // namespace thinwire::pinned
