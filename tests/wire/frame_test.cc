// frame_test.cc: whole frames: round trips, damage, sizes, and the document's golden frames.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/wire/frame.h"

#include <gtest/gtest.h>

#include <bit>
#include <sstream>

#include "tests/wire/reference_decoder.h"
#include "tests/wire/support.h"
#include "thinwire/core/crc32c.h"
#include "thinwire/core/error.h"
#include "thinwire/core/state.h"

namespace thinwire {
namespace {

using Frame = std::vector<std::byte>;

FrameHeader header_for(std::uint32_t elements, std::size_t survivors, ValueCoder values) {
  FrameHeader header{3, false, values, chunk_log2_for(elements, survivors), 7, 41, elements};
  return header;
}

Frame encode(const FrameHeader& header, const std::vector<std::uint32_t>& indices,
             std::vector<float>& values, IndexChoice choice) {
  Frame frame(sparse_frame_bound(header, indices.size()));
  frame.resize(encode_sparse(header, indices, values, choice, frame));
  return frame;
}

void expect_round_trip(const FrameHeader& header, const std::vector<std::uint32_t>& indices,
                       IndexChoice choice) {
  SCOPED_TRACE(testing::Message() << indices.size() << " of " << header.elements << ", chunk 2^"
                                  << int{header.chunk_log2});
  std::vector<float> values = tail_values(5, indices.size()), again = values;
  const Frame frame = encode(header, indices, values, choice);
  ASSERT_EQ(frame, encode(header, indices, again, choice));
  Frame slot = frame;  // a frame may be in a longer slot
  slot.resize(frame.size() + 9, std::byte{0xa5});
  FrameHeader got;
  Sparse out;
  std::size_t used = 0;
  const Status status = decode_sparse(slot, indices.size(), got, out, used);
  ASSERT_TRUE(status.ok()) << status.what;
  ASSERT_EQ(used, frame.size());
  ASSERT_EQ(got, header);
  ASSERT_EQ(out.indices, indices);
  ASSERT_EQ(out.values, values);
  const auto slow = reference::frame(slot);
  ASSERT_TRUE(slow.has_value());
  ASSERT_EQ(slow->bytes, frame.size());
  ASSERT_EQ(slow->indices, indices);
  ASSERT_EQ(slow->values, values);
  std::vector<ChunkInfo> chunks;
  ASSERT_TRUE(read_directory(slot, got, chunks, used).ok());
  ASSERT_EQ(used, frame.size());
  std::size_t counted = 0;
  for (const ChunkInfo& chunk : chunks) counted += chunk.count;
  ASSERT_EQ(counted, indices.size());
  if (!indices.empty()) {
    EXPECT_EQ(decode_sparse(slot, indices.size() - 1, got, out, used).code, Code::mismatch);
  }
}

TEST(Frame, RoundTripsEveryCoder) {
  for (unsigned coder = 0; coder < value_coder_count; ++coder) {
    for (const IndexChoice choice :
         {IndexChoice::smallest, IndexChoice::golomb, IndexChoice::elias_fano, IndexChoice::gap}) {
      for (const std::size_t count : {0u, 1u, 2u, 17u, 3000u}) {
        FrameHeader header = header_for(50000, count, static_cast<ValueCoder>(coder));
        expect_round_trip(header, uniform_support(count, count, 50000), choice);
        header.chunk_log2 = 9;
        expect_round_trip(header, uniform_support(count, count, 50000), choice);
        if (count > 1) expect_round_trip(header, clustered_support(count, count, 50000), choice);
      }
    }
  }
}

TEST(Frame, RoundTripsAwkwardSizes) {
  for (const std::uint32_t elements : {0u, 1u, 2u, 31u, 32u, 33u, 1000u}) {
    std::vector<std::uint32_t> all(elements);
    for (std::uint32_t i = 0; i < elements; ++i) all[i] = i;
    for (const unsigned log2 : {0u, 1u, 5u, 10u, 31u}) {
      FrameHeader header = header_for(elements, 1, ValueCoder::sign);
      header.chunk_log2 = static_cast<std::uint8_t>(log2);
      expect_round_trip(header, all, IndexChoice::smallest);
      expect_round_trip(header, {}, IndexChoice::smallest);
      if (elements > 0) expect_round_trip(header, {elements - 1}, IndexChoice::smallest);
    }
  }
  for (const std::uint32_t elements : {(1u << 24) + 1, ~0u}) {
    for (const std::size_t count : {1u, 5000u}) {
      const FrameHeader header = header_for(elements, count, ValueCoder::log4);
      expect_round_trip(header, uniform_support(1, count, elements), IndexChoice::smallest);
      expect_round_trip(header, {0, elements - 1}, IndexChoice::gap);
      expect_round_trip(header, clustered_support(1, count, elements), IndexChoice::golomb);
    }
  }
}

TEST(Frame, BoundHoldsForUnevenChunks) {
  FrameHeader header = header_for(1 << 16, 1, ValueCoder::sign);
  for (unsigned log2 = 0; log2 <= 16; ++log2) {
    header.chunk_log2 = static_cast<std::uint8_t>(log2);
    for (const std::uint32_t crowd : {1u, 7u, 100u, 3000u}) {
      std::vector<std::uint32_t> indices = uniform_support(log2, crowd, 1 << 16);
      for (std::uint32_t i = 0; i < crowd; ++i) indices.push_back(20000 + i);
      std::sort(indices.begin(), indices.end());
      indices.erase(std::unique(indices.begin(), indices.end()), indices.end());
      expect_round_trip(header, indices, IndexChoice::elias_fano);
    }
  }
}

TEST(Frame, ChunksHoldAboutAThousandSurvivors) {
  EXPECT_EQ(chunk_log2_for(1000000, 1000), 20);  // one chunk
  EXPECT_EQ(chunk_log2_for(25000000, 25000), 20);
  EXPECT_EQ(chunk_log2_for(1 << 20, 1 << 20), 12);  // never less than a tile,
  EXPECT_EQ(chunk_log2_for(~0u, 0), 31);
  EXPECT_EQ(chunk_log2_for(~0u, ~0u), 12);
  EXPECT_EQ(chunk_log2_for(3000, 3000), 12);  // or the whole bucket
  EXPECT_EQ(chunk_log2_for(1, 1), 0);
  EXPECT_EQ(chunk_log2_for(0, 0), 0);
}

TEST(Frame, SkippedIsAHeaderAndAnAnswer) {
  FrameHeader header = header_for(1000, 10, ValueCoder::sign), got;
  header.skipped = true;
  std::vector<float> none;
  const Frame frame = encode(header, {}, none, IndexChoice::smallest);
  EXPECT_EQ(frame.size(), frame_header_bytes);
  Sparse out;
  std::size_t used = 0;
  EXPECT_EQ(decode_sparse(frame, 100, got, out, used).code, Code::skipped);
  EXPECT_EQ(used, frame.size());
  EXPECT_EQ(got, header);
  EXPECT_TRUE(out.indices.empty());
}

TEST(Frame, EncoderRefusesWhatItCannotSend) {
  const FrameHeader header = header_for(100, 2, ValueCoder::f32);
  std::vector<float> values{1, 2};
  Frame room(sparse_frame_bound(header, 2)), small(room.size() - 1);
  const std::vector<std::uint32_t> good{3, 99}, outside{3, 100};
  EXPECT_THROW(encode_sparse(header, good, values, IndexChoice::golomb, small), Error);
  EXPECT_THROW(encode_sparse(header, outside, values, IndexChoice::golomb, room), Error);
  FrameHeader skipped = header;
  skipped.skipped = true;
  EXPECT_THROW(encode_sparse(skipped, good, values, IndexChoice::golomb, room), Error);
}

Frame small_frame(IndexChoice choice, ValueCoder coder) {
  FrameHeader header = header_for(700, 20, coder);
  header.chunk_log2 = 8;
  std::vector<float> values = tail_values(1, 20);
  return encode(header, uniform_support(1, 20, 700), values, choice);
}

Status decode(ConstBytes frame) {
  FrameHeader header;
  Sparse out;
  std::size_t used = 0;
  return decode_sparse(frame, 1000, header, out, used);
}

TEST(Frame, EveryFlippedBitIsDetected) {
  for (const IndexChoice choice :
       {IndexChoice::golomb, IndexChoice::elias_fano, IndexChoice::gap}) {
    Frame frame = small_frame(choice, ValueCoder::log4);
    ASSERT_TRUE(decode(frame).ok());
    for (std::size_t bit = 0; bit < frame.size() * 8; ++bit) {
      frame[bit / 8] ^= std::byte{1} << (bit % 8);
      EXPECT_FALSE(decode(frame).ok()) << bit;
      frame[bit / 8] ^= std::byte{1} << (bit % 8);
    }
  }
}

// Damage under a matching checksum: whatever is accepted is still a support.
TEST(Frame, EveryFlippedBitUnderItsChecksumIsRefusedOrASupport) {
  for (const IndexChoice choice :
       {IndexChoice::golomb, IndexChoice::elias_fano, IndexChoice::gap}) {
    const Frame whole = small_frame(choice, ValueCoder::log4);
    std::size_t refused = 0;
    for (std::size_t bit = 0; bit < whole.size() * 8; ++bit) {
      Frame frame = whole;
      frame[bit / 8] ^= std::byte{1} << (bit % 8);
      repair(frame);
      FrameHeader header;
      Sparse out;
      std::size_t used = 0;
      if (!decode_sparse(frame, 1000, header, out, used).ok()) {
        ++refused;
        continue;
      }
      EXPECT_EQ(std::ranges::adjacent_find(out.indices, std::greater_equal()), out.indices.end());
      EXPECT_TRUE(out.indices.empty() || out.indices.back() < header.elements) << bit;
    }
    EXPECT_GT(refused, 0u);
  }
}

TEST(Frame, EveryTruncationIsAnError) {
  const Frame frame = small_frame(IndexChoice::golomb, ValueCoder::sign);
  for (std::size_t length = 0; length < frame.size(); ++length)
    EXPECT_FALSE(decode(std::span(frame).first(length)).ok()) << length;
}

TEST(Frame, DirectoryIsCanonical) {
  // One chunk of 16 elements, no survivor: the entry is one zero byte.
  FrameHeader header = header_for(16, 0, ValueCoder::f32);
  std::vector<float> none;
  Frame frame = encode(header, {}, none, IndexChoice::golomb);
  ASSERT_EQ(frame.size(), 21u);
  frame[20] = std::byte{1};  // no survivors, but another coder
  repair(frame);
  EXPECT_EQ(decode(frame).code, Code::bad_value);
  frame[20] = std::byte{0x80};  // zero in two bytes
  frame.push_back(std::byte{0});
  repair(frame);
  EXPECT_EQ(decode(frame).code, Code::bad_value);
  frame[20] = std::byte{17 << 2};  // more survivors than elements
  frame.resize(100);
  repair(frame);
  EXPECT_EQ(decode(frame).code, Code::bad_value);
  frame[20] = std::byte{1 << 2 | 3};  // no such index coder
  repair(frame);
  EXPECT_EQ(decode(frame).code, Code::bad_value);
  frame[20] = std::byte{1 << 2};  // a length of six bytes
  std::fill_n(frame.begin() + 22, 5, std::byte{0x80});
  frame[27] = std::byte{1};
  repair(frame);
  EXPECT_EQ(decode(frame).code, Code::bad_value);
}

// Bits per survivor of a whole frame at density 1e-3: the maximum over 20 seeds.
double frame_bits(std::uint32_t elements, ValueCoder coder, IndexChoice choice) {
  double most = 0;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const std::size_t count = elements / 1000;
    std::vector<float> values = tail_values(seed, count);
    const Frame frame = encode(header_for(elements, count, coder),
                               uniform_support(seed, count, elements), values, choice);
    most = std::max(most, 8.0 * static_cast<double>(frame.size()) / static_cast<double>(count));
  }
  return most;
}

TEST(FrameSize, BitsPerSurvivorWithEverythingCounted) {
  for (const std::uint32_t elements : {1000000u, 4000000u, 25000000u}) {
    for (const IndexChoice choice : {IndexChoice::golomb, IndexChoice::smallest}) {
      const double sign = frame_bits(elements, ValueCoder::sign, choice);
      const double log4 = frame_bits(elements, ValueCoder::log4, choice);
      std::printf("%u elements: sign %.3f, log4 %.3f bits per survivor\n", elements, sign, log4);
      EXPECT_LE(sign, 12.7) << elements;
      EXPECT_LE(log4, 15.7) << elements;
    }
  }
}

TEST(FrameSize, IndicesAreNearTheEntropyWithChunkHeadersCounted) {
  const std::uint32_t elements = 1u << 24;
  for (const double density : {1e-4, 1e-3, 1e-2, 1e-1}) {
    const auto count = static_cast<std::size_t>(density * elements);
    const double n = elements, k = static_cast<double>(count);
    const double entropy =
        (std::lgamma(n + 1) - std::lgamma(k + 1) - std::lgamma(n - k + 1)) / std::log(2.0);
    std::vector<float> values(count, 1.0f);
    const Frame frame = encode(header_for(elements, count, ValueCoder::f32),
                               uniform_support(17, count, elements), values, IndexChoice::golomb);
    const double bits = 8.0 * static_cast<double>(frame.size()) - 32 * k;
    std::printf("density %g: %.3f bits per index, entropy %.3f, ratio %.4f\n", density, bits / k,
                entropy / k, bits / entropy);
    EXPECT_LE(bits / entropy, 1.06) << density;
  }
}

// Golden frames: our promise, as data. These bytes are tests/wire/golden/NAME.hex and the blocks of
// the same name in docs/wire_format.md.

struct Golden {
  const char* name;
  FrameHeader header;
  IndexChoice choice;
  std::vector<std::uint32_t> indices;
  std::vector<float> values;
};

std::vector<Golden> golden_frames() {
  const std::vector<std::uint32_t> few{2, 9, 10, 30};
  const std::vector<float> tiny{1.0f, -2.0f, 0.75f, -1.25f};
  const auto header = [](ValueCoder coder) { return FrameHeader{1, false, coder, 6, 5, 100, 50}; };
  const auto chunked = FrameHeader{1, false, ValueCoder::sign, 4, 5, 100, 50};
  std::vector<std::uint32_t> cluster;
  std::vector<float> signs;
  for (std::uint32_t i = 0; i < 12; ++i) {
    cluster.push_back(i < 8 ? 300 + i : 40 * i + 480);
    signs.push_back(i % 3 == 0 ? -1.0f : 1.0f);
  }
  const auto wide = FrameHeader{1, false, ValueCoder::sign, 10, 5, 100, 1000};
  auto skipped = header(ValueCoder::sign);
  skipped.skipped = true;
  auto empty = header(ValueCoder::f32);
  empty.elements = 0;
  empty.chunk_log2 = 0;
  return {{"golomb_f32", header(ValueCoder::f32), IndexChoice::golomb, few, tiny},
          {"golomb_f16", header(ValueCoder::f16), IndexChoice::golomb, few, tiny},
          {"golomb_bf16", header(ValueCoder::bf16), IndexChoice::golomb, few, tiny},
          {"golomb_log8", header(ValueCoder::log8), IndexChoice::golomb, few, tiny},
          {"golomb_log4", header(ValueCoder::log4), IndexChoice::golomb, few, tiny},
          {"golomb_sign", header(ValueCoder::sign), IndexChoice::golomb, few, tiny},
          {"elias_fano_sign", header(ValueCoder::sign), IndexChoice::elias_fano, few, tiny},
          {"gap_sign", wide, IndexChoice::gap, cluster, signs},
          {"chunks_sign", chunked, IndexChoice::golomb, few, tiny},
          {"skipped", skipped, IndexChoice::golomb, {}, {}},
          {"empty", empty, IndexChoice::golomb, {}, {}}};
}

State golden_state() {
  State state;
  state["a/u"] = {Share::summed, {1.0f, -0.5f}, 0, true};
  state["t"] = {Share::local, {}, 0.25, false};
  return state;
}

TEST(Golden, EncoderWritesAndDecoderReadsThem) {
  for (Golden& golden : golden_frames()) {
    SCOPED_TRACE(golden.name);
    const Frame frame = encode(golden.header, golden.indices, golden.values, golden.choice);
    EXPECT_EQ(to_hex(frame), read_text(std::string("tests/wire/golden/") + golden.name + ".hex"));
    FrameHeader header;
    Sparse out;
    std::size_t used = 0;
    const Status status = decode_sparse(frame, 100, header, out, used);
    EXPECT_EQ(status.code, golden.header.skipped ? Code::skipped : Code::ok);
    EXPECT_EQ(header, golden.header);
    EXPECT_EQ(out.indices, golden.indices);
    EXPECT_EQ(out.values, golden.values);
  }
}

TEST(Golden, GapFrameUsesTheGapCoder) {
  Golden golden = golden_frames()[7];
  const Frame frame = encode(golden.header, golden.indices, golden.values, golden.choice);
  EXPECT_EQ(std::to_integer<unsigned>(frame[20]) & 3u, 2u);
}

TEST(Golden, StateIsPinned) {
  EXPECT_EQ(to_hex(serialize(golden_state())), read_text("tests/wire/golden/state.hex"));
}

TEST(State, RefusesNamesOutOfOrder) {
  std::vector<std::byte> bytes = serialize({{"a", {}}, {"b", {}}});
  std::swap(bytes[20], bytes[20 + 15]);
  const std::size_t body = bytes.size() - 4;
  const std::uint32_t crc = crc32c(std::span(bytes).first(body));
  std::memcpy(bytes.data() + body, &crc, sizeof crc);
  State state;
  EXPECT_EQ(deserialize(bytes, state).code, Code::bad_value);
}

// Every ```hex NAME block of the document is the golden file of that name, and every golden file
// has its block.
TEST(Golden, DocumentShowsTheSameBytes) {
  std::istringstream document(read_text("docs/wire_format.md"));
  std::map<std::string, std::string> blocks;
  std::string line, name;
  while (std::getline(document, line)) {
    if (line.rfind("```hex ", 0) == 0) {
      name = line.substr(7);
      blocks[name] = "";
    } else if (line == "```") {
      name.clear();
    } else if (!name.empty()) {
      blocks[name] += line + "\n";
    }
  }
  for (const auto& [block, text] : blocks)
    EXPECT_EQ(text, read_text("tests/wire/golden/" + block + ".hex")) << block;
  for (const Golden& golden : golden_frames())
    EXPECT_TRUE(blocks.contains(golden.name)) << golden.name;
  EXPECT_TRUE(blocks.contains("state"));
}

}  // namespace
}  // namespace thinwire
