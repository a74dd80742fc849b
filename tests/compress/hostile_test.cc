// hostile_test.cc: every scheme that gathers blocks rejects payloads that no encoder writes: set
// padding bits, and numbers that decode to a non-finite average.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "tests/laws.h"
#include "thinwire/compress/atomo.h"
#include "thinwire/wire/block.h"

namespace thinwire::hostile {

using namespace testing;

static constexpr float largest_float = std::numeric_limits<float>::max();

// One worker's frame of `elements` ordinary numbers. Its payload can be changed and sealed again.
struct Frame {
  Frame(const std::string& config, std::size_t elements)
      : compressor(
            make_compressor(Config::parse(config), Bucket::single(0, "w", elements), {0, 1})),
        bytes(compressor->leg(0, 0).bytes),
        average(elements) {
    std::vector<float> g = gradient(Shape::normal, elements, 3);
    bytes.resize(compressor->encode({}, g, bytes));
    ConstBytes payload;
    EXPECT_TRUE(open_block(bytes, header, payload).ok()) << config;
  }

  Bytes payload() { return block_payload(bytes); }
  Status decode() {
    seal_block(header, payload().size(), bytes);
    const std::size_t sizes[] = {bytes.size()};
    return compressor->decode({}, {bytes, bytes.size(), sizes}, average);
  }

  std::unique_ptr<Compressor> compressor;
  std::vector<std::byte> bytes;
  std::vector<float> average;
  FrameHeader header;
};

// The last byte of each of these payloads ends in padding.
TEST(Hostile, SetPaddingBitsAreRefused) {
  for (const char* config :
       {"natural", "qsgd:bits=1", "qsgd:bits=2", "qsgd:bits=3", "qsgd:bits=7", "qsgd:form=coded",
        "onebit", "efsign", "threshold:tau=0.001,memory=none", "signum",
        "natural:memory=residual"}) {
    Frame frame(config, 125);
    ASSERT_TRUE(frame.decode().ok()) << config;
    frame.payload().back() |= std::byte{0x80};
    EXPECT_EQ(frame.decode().code, Code::bad_value) << config;
  }
  for (const char* config : {"qsgd:bits=8", "qsgd:bits=4"}) {  // padding of the signs
    Frame frame(config, 125);
    frame.payload()[4 + 15] |= std::byte{0x80};
    EXPECT_EQ(frame.decode().code, Code::bad_value) << config;
  }
}

TEST(Hostile, LevelsOfNoNormAreRefused) {
  Frame frame("qsgd", 125);
  std::fill_n(frame.payload().begin(), 4, std::byte{0});
  EXPECT_EQ(frame.decode().code, Code::bad_value);
}

// Every accepted payload is finite.
TEST(Hostile, ExtremeNumbersAreRefusedOrFinite) {
  const auto finite = [](const Frame& frame) {
    return std::all_of(frame.average.begin(), frame.average.end(),
                       [](float x) { return std::isfinite(x); });
  };
  const float extremes[] = {largest_float,
                            -largest_float,
                            largest_float / 2,
                            1e-45f,
                            1e-39f,
                            -0.0f,
                            std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN()};
  for (const char* config : {"natural", "qsgd:bits=5", "qsgd:bits=7", "qsgd:form=coded", "onebit",
                             "efsign", "threshold", "int8", "atomo"}) {
    for (const float extreme : extremes) {
      for (std::size_t at = 0; at < 24; ++at) {
        Frame frame(config, 125);
        if (at + 4 > frame.payload().size()) break;
        std::memcpy(frame.payload().data() + at, &extreme, sizeof extreme);
        EXPECT_TRUE(!frame.decode().ok() || finite(frame)) << config << " " << extreme;
      }
    }
  }
}

TEST(Hostile, NormsBeyondTheirLevelsAreRefused) {
  for (const char* config : {"qsgd:bits=5", "qsgd:bits=7"}) {
    Frame frame(config, 64);
    std::memcpy(frame.payload().data(), &largest_float, sizeof largest_float);
    std::fill(frame.payload().begin() + 12, frame.payload().end(), std::byte{0xff});
    EXPECT_EQ(frame.decode().code, Code::bad_value) << config;
  }
}

// Finite numbers with a non-finite product.
TEST(Hostile, AtomoTripletsBeyondFloatAreRefused) {
  const auto codec = make_atomo_codec(1, Bucket{0, {{"w", 0, 16, {4, 4}}}});
  const auto verdict = [&](float scale, float u, float v) {
    std::vector<float> triplet = {scale, u, 0, 0, 0, v, 0, 0, 0}, average(16);
    std::vector<std::byte> payload(4);
    payload[0] = std::byte{1};
    const auto bytes = std::as_bytes(std::span(triplet));
    payload.insert(payload.end(), bytes.begin(), bytes.end());
    return codec->add(payload, 1.0f, average).code;
  };
  EXPECT_EQ(verdict(2, 1, -1), Code::ok);
  EXPECT_EQ(verdict(0, 1, 1), Code::ok);
  EXPECT_EQ(verdict(1e30f, 1e30f, 1), Code::bad_value);
  EXPECT_EQ(verdict(2, 1, 1e30f), Code::bad_value);
  EXPECT_EQ(verdict(largest_float, 1, 1), Code::bad_value);
  EXPECT_EQ(verdict(-2, 1, 1), Code::bad_value);
}

// Lengths are 32 bits on the wire. No memory of such a size is allocated here.
TEST(LongBlock, IsRefusedBeforeTheFirstStep) {
  const std::size_t most = 0xffffffff;
  for (const char* config : {"natural", "natural:memory=momentum", "int8:memory=residual",
                             "qsgd:bits=8", "qsgd:form=coded,bits=4", "atomo"}) {
    const Bucket bucket = Bucket::single(3, "w", most);
    const std::string error = error_of([&] {
      make_compressor(Config::parse(config), bucket, {1, 2});
    });
    EXPECT_NE(error.find("bucket 3: 4294967295 elements may take"), std::string::npos) << config;
    EXPECT_NE(error.find("use smaller buckets"), std::string::npos) << config;
  }
  const std::string error = error_of(
      [&] { make_compressor(Config::parse("atomo"), Bucket::single(0, "w", 1 << 30), {}); });
  EXPECT_NE(error.find("may take 4294967296 bytes"), std::string::npos) << error;
  make_compressor(Config::parse("natural"), Bucket::single(0, "w", 3'000'000'000), {});
}

TEST(LongBlock, IsNotSealed) {
  std::byte frame[block_header_bytes] = {};
  EXPECT_NE(error_of([&] { seal_block({}, longest_block + 1, frame); }).find("4294967296"),
            std::string::npos);
}

// Compares every scheme, option and variant with its state.
TEST(KeepsResidual, IsWhatTheStateShows) {
  std::vector<Config> configs = law_configs();
  for (const Scheme* scheme : schemes()) {
    for (const Option& option : scheme->options) {
      for (const char* value : {"none", "residual", "momentum", "off", "on", "0", "local"}) {
        const Config config{scheme->name, {{option.name, value}}};
        if (error_of([&] { make_compressor(config, Bucket::single(0, "w", 64), {}); }).empty())
          configs.push_back(config);
      }
    }
  }
  EXPECT_GT(configs.size(), 80u);
  for (const Config& config : configs) {
    const auto compressor = make_compressor(config, Bucket{0, {{"w", 0, 80, {8, 10}}}}, {1, 2});
    State state;
    StateSaver saver(state);
    compressor->visit_state(saver);
    EXPECT_EQ(keeps_residual(config), state.count("w/v") == 1) << config.str();
  }
  EXPECT_FALSE(keeps_residual(Config::parse("topk:feedback=off")));
  EXPECT_TRUE(keeps_residual(Config::parse("topk")));
}

}  // namespace thinwire::hostile
