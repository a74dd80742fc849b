// bounds_test.cc: from which point on a scheme chooses otherwise: a dense sum, shorter chunks, one
// worker too many, a frame with too much in it.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstring>

#include "tests/gradients.h"
#include "thinwire/compress/registry.h"
#include "thinwire/wire/block.h"
#include "thinwire/wire/frame.h"

namespace thinwire::bounds {

using namespace testing;

static std::unique_ptr<Compressor> make(const char* config, const Bucket& bucket, int world,
                                        bool sums = true) {
  return make_compressor(Config::parse(config), bucket, {0, world, sums, true});
}

// ---- frames or a dense sum ----

// A gather moves a frame from each rank, a ring moves the bucket twice.
TEST(Sparse, FramesTravelWhileTheyAreShorterThanASum) {
  for (const std::size_t elements : {1u, 2u, 50u, 1000u}) {
    const Bucket bucket = Bucket::single(0, "w", elements);
    for (const char* config : {"topk:density=0.02", "topk:density=0.2,values=f32"}) {
      const std::size_t frame = make(config, bucket, 8, false)->leg(0, 0).bytes;
      for (int world = 1; world < 300; ++world) {
        const Leg leg = make(config, bucket, world)->leg(0, 0);
        const bool dense = world > 1 && static_cast<std::size_t>(world) * frame > 8 * elements;
        ASSERT_EQ(leg.reduction, dense ? Reduction::sum : Reduction::gather) << world;
        ASSERT_EQ(leg.bytes, dense ? 4 * elements : frame) << world;
      }
    }
  }
  EXPECT_EQ(make("topk", Bucket{0, {}}, 9)->leg(0, 0).reduction, Reduction::gather);
}

// A gradient that is short enough is not clipped; a longer one to the limit of each worker.
TEST(Sparse, ClipsLongGradientsOnly) {
  const auto sent = [](const char* config, int world) {
    const auto compressor = make(config, Bucket::single(0, "w", 2), world, false);
    std::vector<float> g = {3, -4}, average(2);
    const Turn turn{0, 0, {}, 25};
    const std::size_t slot = compressor->leg(0, 0).bytes;
    std::vector<std::byte> slots(static_cast<std::size_t>(world) * slot);
    std::vector<std::size_t> sizes(static_cast<std::size_t>(world));
    for (std::size_t rank = 0; rank < sizes.size(); ++rank) {
      if (rank > 0)
        std::copy_n(slots.begin(), slot, slots.begin() + static_cast<std::ptrdiff_t>(rank * slot));
      sizes[rank] = rank > 0 ? sizes[0] : compressor->encode(turn, g, Bytes(slots).first(slot));
    }
    EXPECT_TRUE(compressor->decode(turn, {slots, slot, sizes}, average).ok());
    return average;
  };
  using Pair = std::vector<float>;
  for (const char* norm : {"global", "bucket"}) {
    const auto with = [&](const char* clip) {
      return std::string("dgc:density=1,momentum=0,values=f32,clip_norm=") + norm + ",clip=" + clip;
    };
    EXPECT_EQ(sent(with("0").c_str(), 1), (Pair{3, -4}));
    EXPECT_EQ(sent(with("5").c_str(), 1), (Pair{3, -4}));
    EXPECT_EQ(sent(with("100").c_str(), 1), (Pair{3, -4}));
    EXPECT_EQ(sent(with("2.5").c_str(), 1), (Pair{1.5f, -2}));
    EXPECT_EQ(sent(with("2.5").c_str(), 4), (Pair{0.75f, -1}));  // half of it for each of four
  }
}

// ---- chunks ----

// 64 chunks at least; long ones are multiples of 16.
TEST(Csc, SmallBucketsHaveSmallChunks) {
  const auto chunks = [](std::size_t elements, const char* config = "csc") {
    return make(config, Bucket::single(0, "w", elements), 2)->leg(0, 0).bytes / sizeof(float);
  };
  EXPECT_EQ(chunks(1), 1u);
  EXPECT_EQ(chunks(63), 63u);
  EXPECT_EQ(chunks(64 * 2 - 1), 127u);
  EXPECT_EQ(chunks(64 * 2), 64u);
  EXPECT_EQ(chunks(64 * 15), 64u);
  EXPECT_EQ(chunks(64 * 16), 64u);
  EXPECT_EQ(chunks(64 * 17), 68u);  // of 16
  EXPECT_EQ(chunks(64 * 31), 124u);
  EXPECT_EQ(chunks(64 * 32), 64u);
  EXPECT_EQ(chunks(64 * 33), 66u);  // of 32
  EXPECT_EQ(chunks(64 * 33, "csc:chunk=20"), 106u);
}

// ---- TernGrad ----

TEST(Terngrad, CountsAsManyWorkersAsItsSumsHold) {
  const auto error = [](const char* config, int world) {
    return error_of([&] { make(config, Bucket::single(0, "w", 10), world); });
  };
  EXPECT_EQ(error("terngrad:travel=sum", 127), "");
  EXPECT_EQ(error("terngrad", 32767), "");
  EXPECT_NE(error("terngrad", 32768).find("at most 32767 workers, got 32768"), std::string::npos);
}

TEST(Terngrad, BadBytesNameTheirRank) {
  const Bucket bucket = Bucket::single(0, "w", 12);
  const auto compressor = make("terngrad", bucket, 2);
  std::vector<float> g = gradient(Shape::normal, 12, 1), average(12);
  const Turn first{0, 0, {}, 0}, second{0, 1, {}, 0};
  std::vector<float> scale(1), two(2);
  const auto scales = [&](std::span<const float> values) {
    return compressor->decode(first, {std::as_bytes(values), 0, {}}, average).code;
  };
  compressor->encode(first, g, std::as_writable_bytes(std::span(scale)));
  EXPECT_EQ(scales(two), Code::truncated);
  EXPECT_EQ(scales({}), Code::truncated);
  EXPECT_EQ(scales(std::vector<float>{-1}), Code::bad_value);
  EXPECT_EQ(scales(std::vector<float>{INFINITY}), Code::skipped);
  EXPECT_EQ(scales(std::vector<float>{0}), Code::ok);
  EXPECT_EQ(scales(scale), Code::ok);
  const std::size_t slot = compressor->leg(0, 1).bytes, payload = (12 + 4) / 5;
  EXPECT_EQ(slot, block_header_bytes + payload);
  std::vector<std::byte> slots(2 * slot);
  for (int bad = -1; bad < 2; ++bad) {
    for (int rank = 0; rank < 2; ++rank) {
      const Bytes frame = Bytes(slots).subspan(static_cast<std::size_t>(rank) * slot, slot);
      EXPECT_EQ(compressor->encode(second, g, frame), slot);
      FrameHeader header;
      ASSERT_TRUE(read_header(frame, header).ok());
      if (rank == bad) frame[block_header_bytes + 1] = std::byte{243};  // 3^5 and no value
      seal_block(header, payload, frame);
    }
    const Inbox inbox{slots, slot, {}};
    const Code code = compressor->decode(second, inbox, average).code;
    EXPECT_EQ(code, bad < 0 ? Code::ok : Code::bad_value) << bad;
    EXPECT_EQ(inbox.culprit, bad);
  }
  // One byte less than the bucket asks.
  FrameHeader header;
  ASSERT_TRUE(read_header(slots, header).ok());
  seal_block(header, payload - 1, Bytes(slots).first(slot - 1));
  const Inbox inbox{slots, slot, {}};
  EXPECT_EQ(compressor->decode(second, inbox, average).code, Code::mismatch);
  EXPECT_EQ(inbox.culprit, 0);
}

// ---- blocks ----

TEST(Blocks, AreRefusedWithTheirRange) {
  const auto error = [](const char* config) {
    return error_of([&] { make(config, Bucket::single(0, "w", 10), 1); });
  };
  EXPECT_NE(error("int8:block=8193").find("from 64 to 8192, got 8193"), std::string::npos);
  EXPECT_NE(error("int8:block=63").find("from 64 to 8192, got 63"), std::string::npos);
  EXPECT_EQ(error("int8:block=65").find("from 64 to 8192"), std::string::npos);
  EXPECT_NE(error("int8:block=65"), "");
}

}  // namespace thinwire::bounds
