// threshold_test.cc: quanta against their definition, the steering, and payloads that a decoder
// must reject. Blocks have tests of their own (tests/wire/quanta_test.cc).
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "tests/gradients.h"
#include "thinwire/compress/threshold_codec.h"
#include "thinwire/core/parallel.h"

namespace thinwire {
namespace {

using namespace testing;

const Bucket two_layers{0, {{"a", 0, 5001, {}}, {"none", 5001, 0, {}}, {"b", 5001, 1003, {}}}};
constexpr std::size_t count = 6004;

struct Sent {
  std::vector<std::byte> payload;
  std::vector<float> values;
};

Sent send(ThresholdCodec& codec, std::span<const float> g, std::span<float> r) {
  Sent sent{std::vector<std::byte>(codec.payload_bytes()), std::vector<float>(g.size())};
  const Coded coded = codec.encode(g, r, 0, sent.payload);
  EXPECT_TRUE(coded.finite);
  EXPECT_LE(coded.bytes, sent.payload.size());
  sent.payload.resize(coded.bytes);
  EXPECT_TRUE(codec.add(sent.payload, 1, sent.values).ok());
  return sent;
}

// layout, thresholds, lengths.
constexpr std::size_t head = 4 + 2 * 4 + 2 * 2, dense = 2 * (626 + 126);

// The paper's rule, element by element. A small tau is sent dense, a large one sparse.
TEST(ThresholdCodec, IsThePapersInBothForms) {
  for (const float tau : {1e-4f, 3.0f}) {
    ThresholdCodec codec({.tau = tau}, two_layers);
    std::vector<float> r(count), expected(count);
    for (std::uint64_t step = 0; step < 5; ++step) {
      const auto g = gradient(Shape::normal, count, step);
      const Sent sent = send(codec, g, r);
      EXPECT_EQ(sent.payload.size() < head + dense, tau > 1);
      for (std::size_t i = 0; i < count; ++i) {
        const float x = g[i] + expected[i];
        const float quantum = x >= tau ? tau : x <= -tau ? -tau : 0;
        expected[i] = x - quantum;
        ASSERT_EQ(sent.values[i], quantum);
      }
      ASSERT_TRUE(same_bits(r, expected));
    }
  }
}

// Each block has its own form.
TEST(ThresholdCodec, TakesTheSmallerFormOfEachBlock) {
  ThresholdCodec codec({.tau = 1}, two_layers);
  EXPECT_EQ(codec.payload_bytes(), head + dense);
  for (const bool first : {false, true}) {
    std::vector<float> g(count);
    for (std::size_t i = 0; i < count; ++i) g[i] = (i < 5001) == first ? 2.0f : 0.0f;
    const Sent sent = send(codec, g, {});
    EXPECT_EQ(sent.payload.size(), head + (first ? 2 * 626 : 2 * 126));
  }
}

double sent_share(std::span<const float> values) {
  std::size_t sent = 0;
  for (const float value : values) sent += value != 0 ? 1 : 0;
  return static_cast<double>(sent) / static_cast<double>(values.size());
}

// Close to the density from the first step on, in each layer, although one is a thousand times
// smaller; soon within a fifth.
TEST(ThresholdCodec, SteersToTheDensity) {
  ThresholdCodec codec({.density = 0.05}, two_layers);
  std::vector<float> r(count);
  double late = 0;
  for (std::uint64_t step = 0; step < 300; ++step) {
    auto g = gradient(Shape::normal, count, step);
    for (std::size_t i = 5001; i < count; ++i) g[i] *= 1e-3f;
    const auto values = send(codec, g, r).values;
    const double share = sent_share(std::span(values).last(1003));
    if (step == 0) {
      EXPECT_NEAR(sent_share(std::span(values).first(5001)), 0.05, 0.001);
      EXPECT_NEAR(share, 0.05, 0.001);
    }
    if (step >= 100) late += share / 200;
  }
  EXPECT_NEAR(late, 0.05, 0.01);
}

// Counting alone would never catch up with an element that grows by more than tau in every step.
TEST(ThresholdCodec, RaisesATauThatOneElementOutgrows) {
  const std::size_t n = 1000;
  ThresholdCodec codec({.density = 0.01}, Bucket::single(0, "w", n));
  std::vector<float> r(n);
  for (std::uint64_t step = 0; step < 1500; ++step) {
    auto g = gradient(Shape::normal, n, step);
    for (float& x : g) x *= 1e-2f;
    g[7] = 5;
    send(codec, g, r);
  }
  EXPECT_LT(std::fabs(r[7]), 100);
}

TEST(ThresholdCodec, ZerosThenGradients) {
  ThresholdCodec codec({.density = 0.05}, two_layers);
  std::vector<float> r(count), zero(count);
  EXPECT_EQ(sent_share(send(codec, zero, r).values), 0);
  EXPECT_NEAR(sent_share(send(codec, gradient(Shape::normal, count, 1), r).values), 0.05, 0.001);
}

TEST(ThresholdCodec, NonFiniteElementsKeepTheirResidual) {
  ThresholdCodec codec({.tau = 1}, two_layers);
  auto g = gradient(Shape::normal, count, 1);
  auto r = gradient(Shape::normal, count, 2);
  const float before = r[77];
  g[77] = std::numeric_limits<float>::quiet_NaN();
  std::vector<std::byte> payload(codec.payload_bytes());
  const Coded coded = codec.encode(g, r, 0, payload);
  EXPECT_FALSE(coded.finite);
  EXPECT_EQ(r[77], before);
  std::vector<float> values(count);
  EXPECT_TRUE(codec.add(ConstBytes(payload).first(coded.bytes), 1, values).ok());
  EXPECT_EQ(values[77], 0);
}

TEST(ThresholdCodec, SameBytesWithAnyNumberOfThreads) {
  const std::size_t n = 300007;
  const auto g = gradient(Shape::heavy, n, 1);
  std::vector<std::byte> first;
  for (const int number : {1, 2, 5}) {
    set_threads(number);
    ThresholdCodec codec({.density = 0.02}, Bucket::single(0, "w", n));
    std::vector<float> r(n);
    send(codec, g, r);
    const Sent sent = send(codec, g, r);
    if (number == 1) first = sent.payload;
    EXPECT_EQ(sent.payload, first) << number;
  }
  set_threads(1);
}

// A payload of eleven elements, byte by byte.
struct Payload {
  std::uint32_t layout = 2;
  float tau = 1;
  std::uint16_t length = 4;
  std::vector<unsigned> block = {0x0f, 7, 0xf0, 0};

  std::vector<std::byte> bytes() const {
    std::vector<std::byte> all(10);
    std::memcpy(all.data(), &layout, sizeof layout);
    std::memcpy(all.data() + 4, &tau, sizeof tau);
    std::memcpy(all.data() + 8, &length, sizeof length);
    for (const unsigned byte : block) all.push_back(std::byte(byte));
    return all;
  }
};

TEST(ThresholdCodec, RefusesWhatNoEncoderWrites) {
  ThresholdCodec codec({.tau = 1}, Bucket::single(0, "w", 11));
  std::vector<float> target(11);
  const auto answer = [&](const Payload& payload) {
    const std::vector<std::byte> bytes = payload.bytes();
    int culprit = -1;
    const Code code = codec.add(bytes, 1, target).code;
    const std::vector<std::byte> good = Payload().bytes();
    const ConstBytes both[] = {good, bytes};
    EXPECT_EQ(codec.average(both, 0.5f, target, culprit).code, code);
    EXPECT_EQ(culprit, code == Code::ok ? 2 : 1);
    return code;
  };
  EXPECT_EQ(answer({}), Code::ok);
  for (const std::uint32_t layout : {0u, 1u, 3u, 0x102u})  // retired, unknown
    EXPECT_EQ(answer({.layout = layout}), Code::bad_value) << layout;
  for (const float tau : {0.0f, -1.0f, std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN()})
    EXPECT_EQ(answer({.tau = tau}), Code::bad_value) << tau;
  EXPECT_EQ(answer({.length = 5, .block = {0x0f, 7, 0xf0, 0, 0}}), Code::bad_value);
  EXPECT_EQ(answer({.length = 3}), Code::bad_value);
  EXPECT_EQ(answer({.length = 4, .block = {0x0f, 7, 0xf0}}), Code::bad_value);
  EXPECT_EQ(answer({.block = {0x0f, 8, 0xf0, 0}}), Code::bad_value);  // padding
  EXPECT_EQ(answer({.length = 3, .block = {1, 2, 3}}), Code::bad_value);
  EXPECT_EQ(codec.add(std::vector<std::byte>(9), 1, target).code, Code::truncated);
  // Sixteen elements of sixteen in the sparse form, which is longer than the dense one.
  const Payload sparse{.length = 5, .block = {0x5f, 0x55, 0x55, 0x55, 0x05}};
  std::vector<float> sixteen(16);
  EXPECT_EQ(
      ThresholdCodec({.tau = 1}, Bucket::single(0, "w", 16)).add(sparse.bytes(), 1, sixteen).code,
      Code::bad_value);
}

}  // namespace
}  // namespace thinwire
