// shapes_test.cc: what a parameter is as a matrix, which rows share two means, directions that are
// drawn anew, and the last payload that a codec takes.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "tests/gradients.h"
#include "thinwire/compress/atomo.h"
#include "thinwire/compress/basis.h"
#include "thinwire/compress/csc.h"
#include "thinwire/compress/matrix.h"
#include "thinwire/compress/powersgd.h"
#include "thinwire/compress/powersgd_layout.h"
#include "thinwire/compress/randomk.h"
#include "thinwire/compress/registry.h"
#include "thinwire/compress/sparse.h"
#include "thinwire/compress/threshold_codec.h"
#include "thinwire/core/buffer.h"
#include "thinwire/wire/block.h"

namespace thinwire::shapes {

using namespace testing;

TEST(MatrixShape, IsTheFirstDimensionByTheRest) {
  using Shape = std::vector<std::int64_t>;
  const auto shape = [](std::size_t count, const Shape& of) {
    const MatrixShape found = matrix_shape({"w", 0, count, of});
    return std::pair(found.rows, found.cols);
  };
  using Pair = std::pair<std::size_t, std::size_t>;
  EXPECT_EQ(shape(12, {3, 4}), (Pair{3, 4}));
  EXPECT_EQ(shape(24, {3, 4, 2}), (Pair{3, 8}));
  EXPECT_EQ(shape(4, {1, 4}), (Pair{1, 4}));
  EXPECT_EQ(shape(4, {4, 1}), (Pair{4, 1}));
  EXPECT_EQ(shape(1, {1, 1}), (Pair{1, 1}));
  for (const Shape& none :
       {Shape{}, Shape{12}, Shape{0, 4}, Shape{-3, -4}, Shape{5, 2}, Shape{24, 1}})
    EXPECT_EQ(shape(12, none), (Pair{0, 0}));
  EXPECT_EQ(shape(0, {3, 0}), (Pair{0, 0}));
}

// A single row pays where the rate asks for little.
TEST(PowerSgd, OneRowIsAMatrixToo) {
  const Bucket bucket{0, {{"w", 0, 40, {1, 40}}}};
  EXPECT_EQ(lay_out(bucket, 2, 0.5, 0).matrices.size(), 1u);
  EXPECT_EQ(lay_out(bucket, 2, 1, 0).matrices.size(), 0u);
  EXPECT_EQ(lay_out(bucket, 2, 0.5, 0).matrices[0].rank, 1u);
  // 16 numbers for 64: a quarter is not less than a quarter.
  const Bucket square{0, {{"w", 0, 64, {8, 8}}}};
  EXPECT_EQ(lay_out(square, 1, 3.9, 0).matrices.size(), 1u);
  EXPECT_EQ(lay_out(square, 1, 4, 0).matrices.size(), 0u);
}

// Rows of a length are joined until they have `group` elements, and no more than that.
TEST(Onebit, JoinsAsFewRowsAsItTakes) {
  const auto groups = [](std::size_t rows, std::size_t cols, std::size_t least) {
    const Bucket bucket{0,
                        {{"w",
                          0,
                          rows * cols,
                          {static_cast<std::int64_t>(rows), static_cast<std::int64_t>(cols)}}}};
    const Scheme& scheme = find_scheme("onebit");
    const Config config{"onebit", {{"group", std::to_string(least)}}};
    // Two floats per group, and its bits in whole bytes: here rows are multiples of 8.
    const std::size_t bytes = scheme.bytes(Options(config, scheme.options), bucket);
    return (bytes - block_header_bytes - rows * cols / 8) / 8;
  };
  EXPECT_EQ(groups(12, 8, 1), 12u);
  EXPECT_EQ(groups(12, 8, 8), 12u);
  EXPECT_EQ(groups(12, 8, 9), 6u);  // two rows
  EXPECT_EQ(groups(12, 8, 16), 6u);
  EXPECT_EQ(groups(12, 8, 17), 4u);  // three
  EXPECT_EQ(groups(12, 8, 24), 4u);
  EXPECT_EQ(groups(12, 8, 25), 3u);
  EXPECT_EQ(groups(12, 8, 96), 1u);
  EXPECT_EQ(groups(12, 8, 97), 1u);
  EXPECT_EQ(groups(13, 8, 25), 3u);  // 4, 4 and 5 rows
  EXPECT_EQ(groups(3, 16384, 1), 3u);
  EXPECT_EQ(groups(3, 16384 + 8, 1), 6u);  // long rows are cut
  EXPECT_EQ(groups(1, 4 * 16384, 1), 4u);
  EXPECT_EQ(groups(1, 4 * 16384, 20000), 2u);
  EXPECT_EQ(groups(1, 4 * 16384, 30000), 2u);  // up to twice the smallest
  EXPECT_EQ(groups(1, 4 * 16384, 33000), 1u);
}

// A vector that vanished becomes the draw of its stream, all of it.
TEST(Basis, AVanishedVectorIsDrawnWhole) {
  const std::size_t length = 37, rank = 3;
  for (const std::uint64_t seed : {1u, 5u}) {
    std::vector<float> vanished(length * rank), drawn(length * rank);
    const Basis zeros{vanished.data(), length, rank, 1, length};
    const Basis draws{drawn.data(), length, rank, 1, length};
    orthonormalise(zeros, seed);
    draw(draws, seed);
    orthonormalise(draws, std::nullopt);
    for (std::size_t i = 0; i < drawn.size(); ++i) EXPECT_NEAR(vanished[i], drawn[i], 1e-6) << i;
    EXPECT_NEAR(norm(std::span(vanished).first(length)), 1, 1e-6);
  }
}

// Scales that add up to 2^127, with room for the rounding of each.
TEST(Atomo, TakesScalesUpToTheirLimit) {
  const auto codec = make_atomo_codec(1, Bucket{0, {{"w", 0, 64, {8, 8}}}});
  const auto verdict = [&](float first, float second) {
    std::vector<float> triplets(2 * 17), sum(64);
    triplets[0] = first, triplets[17] = second;
    triplets[1] = triplets[9] = triplets[18] = triplets[26] = 1;
    std::vector<std::byte> payload(4);
    payload[0] = std::byte{2};
    const auto bytes = std::as_bytes(std::span(triplets));
    payload.insert(payload.end(), bytes.begin(), bytes.end());
    const Code code = codec->add(payload, 0.5f, sum).code;
    EXPECT_TRUE(code != Code::ok || std::isfinite(sum[0]));
    return code;
  };
  EXPECT_EQ(verdict(0x1p127f, 0), Code::ok);
  EXPECT_EQ(verdict(0x1p127f, 0x1.8p106f), Code::ok);
  EXPECT_EQ(verdict(0x1p127f, 0x1.8p107f), Code::bad_value);
  EXPECT_EQ(verdict(0x1p126f, 0x1p126f), Code::ok);
  EXPECT_EQ(verdict(0x1p126f, 0x1.8p126f), Code::bad_value);
}

// The same for an encoder: a residual may be as large. Its layer is sent as zeros.
TEST(Atomo, SendsScalesUpToTheirLimit) {
  const auto codec = make_atomo_codec(1000, Bucket{0, {{"w", 0, 64, {8, 8}}}});
  for (const float first : {1e38f, 0.5e38f}) {
    const std::vector<float> g(64);
    std::vector<float> residual(64);
    residual[0] = first, residual[9] = 1e38f;
    std::vector<std::byte> payload(codec->payload_bytes());
    const Coded coded = codec->encode(g, residual, 1, payload);
    EXPECT_EQ(coded.finite, first < 1e38f);
    EXPECT_EQ(payload[0], std::byte(first < 1e38f ? 2 : 0));
    EXPECT_EQ(residual[9], first < 1e38f ? 0 : 1e38f);
  }
}

// A layer with an element beyond the limit is coded as zeros; its residual takes in the rest.
TEST(Atomo, ABadLayerIsCodedAsZeros) {
  const Bucket bucket{0, {{"w", 0, 64, {8, 8}}, {"b", 64, 3, {}}}};
  const auto codec = make_atomo_codec(3, bucket);
  for (const std::size_t bad : {5u, 65u}) {
    std::vector<float> g(67, 2.0f), residual(67, 1.0f), sum(67);
    g[bad] = std::numeric_limits<float>::quiet_NaN();
    std::vector<std::byte> payload(codec->payload_bytes());
    const Coded coded = codec->encode(g, residual, 1, payload);
    EXPECT_FALSE(coded.finite);
    ASSERT_TRUE(codec->add(ConstBytes(payload).first(coded.bytes), 1, sum).ok());
    for (std::size_t i = 0; i < 67; ++i) {
      const bool of_bad = (i < 64) == (bad < 64);
      EXPECT_NEAR(sum[i], of_bad ? 0 : 3, 1e-5) << i;
      EXPECT_NEAR(residual[i], i == bad ? 1 : of_bad ? 3 : 0, 1e-5) << i;
    }
  }
}

// Thresholds that an encoder may write, and the first beyond them.
TEST(ThresholdCodec, TakesThresholdsUpToTheirLimits) {
  const ThresholdCodec codec({.tau = 1}, Bucket::single(0, "w", 8));
  const auto verdict = [&](float tau) {
    std::vector<std::byte> payload(codec.payload_bytes());
    payload[0] = std::byte{2};
    std::memcpy(payload.data() + 4, &tau, sizeof tau);
    payload[8] = std::byte{2};   // the bytes of the block
    payload[10] = std::byte{1};  // the first element is plus
    std::vector<float> sum(8);
    const Code code = codec.add(payload, 1, sum).code;
    EXPECT_TRUE(code != Code::ok || sum[0] == tau);
    return code;
  };
  const float least = std::numeric_limits<float>::min();
  const float most = std::numeric_limits<float>::max() / 4;
  EXPECT_EQ(verdict(least), Code::ok);
  EXPECT_EQ(verdict(std::nextafter(least, 0.0f)), Code::bad_value);
  EXPECT_EQ(verdict(most), Code::ok);
  EXPECT_EQ(verdict(std::nextafter(most, HUGE_VALF)), Code::bad_value);
  EXPECT_EQ(verdict(-1), Code::bad_value);
}

// Quanta of both signs at any place, in layers that begin anywhere.
TEST(ThresholdCodec, BothFormsBringEveryQuantum) {
  for (const std::uint32_t share : {2u, 20u}) {  // one of so many is sent: dense, sparse
    for (const std::size_t count : {1u, 8u, 9u, 4097u, 16383u, 16384u, 16385u, 140'000u}) {
      const Bucket bucket{0, {{"a", 0, 5, {}}, {"b", 5, count, {}}, {"c", 5 + count, 13, {}}}};
      ThresholdCodec codec({.tau = 2}, bucket);
      std::vector<float> g(bucket.elements()), sum(g.size());
      for (std::size_t i = 0; i < g.size(); ++i) {
        const std::uint32_t draw = random_below(share, i, 2 * share);
        if (share == 2 ? draw != 0 : draw < 2) g[i] = draw % 2 == 0 ? 2.0f : -2.0f;
      }
      std::vector<std::byte> payload(codec.payload_bytes());
      const Coded coded = codec.encode(g, {}, 0, payload);
      ASSERT_TRUE(codec.add(ConstBytes(payload).first(coded.bytes), 1, sum).ok()) << count;
      ASSERT_TRUE(same_bits(sum, g)) << count;
    }
  }
}

// Each layer has its own quantum, from its first element to its last.
TEST(ThresholdCodec, SparseQuantaAreThoseOfTheirLayer) {
  const Bucket bucket{0, {{"a", 0, 100, {}}, {"b", 100, 200, {}}, {"c", 300, 1, {}}}};
  ThresholdCodec codec({.density = 0.01}, bucket);
  std::vector<float> g(301), sum(301);
  g[99] = 3, g[100] = -5, g[299] = 5, g[300] = 7;
  std::vector<std::byte> payload(codec.payload_bytes());
  const Coded coded = codec.encode(g, {}, 0, payload);
  EXPECT_LT(coded.bytes, 4 + 3 * 6 + 8u);
  ASSERT_TRUE(codec.add(ConstBytes(payload).first(coded.bytes), 1, sum).ok());
  EXPECT_TRUE(same_bits(sum, g));
}

// A threshold that was given stays, and is no state.
TEST(ThresholdCodec, AGivenThresholdStays) {
  ThresholdCodec codec({.tau = 0.5, .density = 0.1}, Bucket::single(0, "w", 100));
  const std::vector<float> g(100, 3.0f);
  for (int step = 0; step < 3; ++step) {
    std::vector<std::byte> payload(codec.payload_bytes());
    codec.encode(g, {}, 0, payload);
    float tau = 0;
    std::memcpy(&tau, payload.data() + 4, sizeof tau);
    EXPECT_EQ(tau, 0.5f) << step;
  }
  State state;
  StateSaver saver(state);
  codec.visit_state(saver);
  EXPECT_TRUE(state.empty());
}

// Whatever is cut off a payload is missed, where the frame around it is sound.
TEST(Hostile, ShortenedPayloadsAreRefused) {
  for (const char* text :
       {"natural", "int8", "qsgd", "qsgd:form=coded", "qsgd:form=coded,bits=1", "onebit", "efsign",
        "threshold", "threshold:tau=0.1", "atomo", "signum"}) {
    const Bucket bucket{0, {{"w", 0, 120, {10, 12}}, {"b", 120, 5, {}}}};
    const auto compressor = make_compressor(Config::parse(text), bucket, {0, 1});
    std::vector<float> g = gradient(Shape::normal, 125, 3), average(125);
    std::vector<std::byte> frame(compressor->leg(0, 0).bytes);
    const std::size_t whole = compressor->encode({}, g, frame) - block_header_bytes;
    FrameHeader header;
    ConstBytes payload;
    ASSERT_TRUE(
        open_block(ConstBytes(frame).first(whole + block_header_bytes), header, payload).ok());
    for (std::size_t length = 0; length <= whole; ++length) {
      std::vector<std::byte> cut = frame;
      const std::size_t sizes[] = {seal_block(header, length, cut)};
      const Inbox inbox{cut, cut.size(), sizes};
      const Status status = compressor->decode({}, inbox, average);
      EXPECT_EQ(status.ok(), length == whole) << text << " " << length << " of " << whole;
      EXPECT_EQ(inbox.culprit, length == whole ? -1 : 0) << text << " " << length;
    }
  }
}

// The first threshold of a long layer is found in 65536 of its elements, evenly spaced.
TEST(ThresholdCodec, EstimatesFromEvenlySpacedElements) {
  const std::size_t count = 200'000;
  ThresholdCodec codec({.density = 0.5}, Bucket::single(0, "w", count));
  std::vector<float> g(count, 0.0f);
  for (std::size_t i = 0; i < 65536; ++i) {
    const std::size_t at = count * i / 65536;
    g[at] = static_cast<float>(65536 - i);  // the others are zero and would halve it
  }
  std::vector<std::byte> payload(codec.payload_bytes());
  codec.encode(g, {}, 0, payload);
  float tau = 0;
  std::memcpy(&tau, payload.data() + 4, sizeof tau);
  EXPECT_EQ(tau, 32769.0f);
}

// The longest payload that a frame holds, and one byte more. No memory of that size is needed.
TEST(LongBlock, TakesWhatAFrameHolds) {
  const auto error = [](std::size_t count) {
    return error_of(
        [&] { make_compressor(Config::parse("natural"), Bucket::single(0, "w", count), {}); });
  };
  EXPECT_EQ(error(3'817'748'706), "");
  EXPECT_NE(error(3'817'748'707).find("may take 4294967296 bytes"), std::string::npos);
}

// Where there is no CUDA, whoever comes here by another way than the registry is told so, too.
TEST(Schemes, WithoutCudaSayHowToGetIt) {
  const auto says = [](const std::string& text) {
    return text.find("-DTHINWIRE_CUDA=ON") != std::string::npos;
  };
  if (!says(error_of([] { Buffer(Place::cuda, 1); }))) GTEST_SKIP() << "this build has CUDA";
  const Bucket bucket = Bucket::single(0, "w", 100);
  Site site;
  site.device = {Device::Kind::cuda, 0};
  EXPECT_TRUE(says(error_of([&] { make_sparse_cuda({}, bucket, site); })));
  EXPECT_TRUE(says(error_of([&] { make_csc_cuda({}, bucket, site); })));
  EXPECT_TRUE(says(error_of([&] { make_randomk_cuda({}, bucket, site); })));
  EXPECT_TRUE(says(error_of([&] { make_powersgd_cuda({}, bucket, site); })));
}

// What topk does not set.
TEST(Sparse, ByDefaultNothingIsClipped) {
  const SparseSettings settings;
  EXPECT_EQ(settings.clip, 0);
  EXPECT_TRUE(settings.clip_global);
  EXPECT_EQ(settings.scheme, 0);
  const SparsePlan plan;
  EXPECT_EQ(plan.density, 0);
  EXPECT_EQ(plan.most, 0u);
  EXPECT_EQ(plan.bound, 0u);
  EXPECT_FALSE(plan.dense);
}

}  // namespace thinwire::shapes
