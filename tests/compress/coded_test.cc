// coded_test.cc: memory around a codec: the recurrences of coded.h, undo, hostile frames. Also
// codecs by pieces: any number of threads, all ranks at once.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/compress/coded.h"

#include <gtest/gtest.h>

#include "tests/gradients.h"
#include "thinwire/compress/registry.h"
#include "thinwire/core/parallel.h"

namespace thinwire {
namespace {

using testing::gradient;
using testing::same_bits;
using testing::Shape;

constexpr std::size_t bucket_size = 700;

// One worker: its decoded message and its state.
struct Worker {
  explicit Worker(const std::string& config, std::size_t elements = bucket_size)
      : compressor(
            make_compressor(Config::parse(config), Bucket::single(0, "w", elements), {0, 1})),
        frame(compressor->leg(0, 0).bytes) {}

  std::vector<float> step(std::vector<float> g, std::uint64_t number) {
    const Turn turn{number, 0, {}, 0};
    const std::size_t sizes[] = {compressor->encode(turn, g, frame)};
    EXPECT_TRUE(compressor->decode(turn, {frame, frame.size(), sizes}, g).ok());
    return g;
  }

  State state() const {
    State state;
    StateSaver saver(state);
    compressor->visit_state(saver);
    return state;
  }

  std::unique_ptr<Compressor> compressor;
  std::vector<std::byte> frame;
};

// u = m u + g, x = u + v, v = x - sent; Nesterov: u = m (u + g), x = u + g + v.
TEST(Coded, MomentumIsTheRecurrence) {
  for (const bool nesterov : {false, true}) {
    Worker worker(std::string("int8:memory=momentum,momentum=0.8,nesterov=") +
                  (nesterov ? "on" : "off"));
    std::vector<double> u(bucket_size), v(bucket_size);
    for (std::uint64_t number = 0; number < 40; ++number) {
      const auto g = gradient(Shape::normal, bucket_size, number);
      const auto sent = worker.step(g, number);
      for (std::size_t i = 0; i < bucket_size; ++i) {
        u[i] = nesterov ? 0.8 * (u[i] + g[i]) : 0.8 * u[i] + g[i];
        v[i] += u[i] + (nesterov ? g[i] : 0) - sent[i];
      }
    }
    const State state = worker.state();
    for (std::size_t i = 0; i < bucket_size; ++i) {
      ASSERT_NEAR(state.at("w/u").values[i], u[i], 1e-4);
      ASSERT_NEAR(state.at("w/v").values[i], v[i], 1e-4);
    }
  }
}

TEST(Coded, MemoryNoneKeepsNothing) {
  Worker worker("int8:memory=none");
  worker.step(gradient(Shape::normal, bucket_size, 1), 0);
  EXPECT_TRUE(worker.state().empty());
}

// A skipped step leaves the gradient in the residual.
TEST(Coded, UndoPutsBackWhatWasSent) {
  for (const char* config :
       {"int8", "natural:memory=residual", "qsgd:form=coded,memory=residual"}) {
    Worker worker(config);
    const auto g = gradient(Shape::normal, bucket_size, 1);
    std::vector<float> copy = g;
    worker.compressor->encode({}, copy, worker.frame);
    worker.compressor->undo({});
    const auto kept = worker.state().at("w/v").values;
    for (std::size_t i = 0; i < bucket_size; ++i) ASSERT_NEAR(kept[i], g[i], 1e-6) << config;
  }
}

// Frames of another step and payloads of another length are rejected, and the error names the rank
// that sent them.
TEST(Coded, NamesTheRankWhoseBytesAreWrong) {
  const Bucket bucket = Bucket::single(0, "w", bucket_size),
               other = Bucket::single(0, "w", bucket_size - 1);
  for (const char* text : {"int8", "natural", "qsgd", "qsgd:form=coded"}) {
    const Config config = Config::parse(text);
    const auto good = make_compressor(config, bucket, {0, 2});
    const auto bad = make_compressor(config, other, {1, 2});
    const std::size_t slot = good->leg(0, 0).bytes;
    std::vector<std::byte> slots(2 * slot);
    auto g = gradient(Shape::normal, bucket_size, 1), average = g;
    const std::size_t sizes[] = {
        good->encode({}, g, Bytes(slots).first(slot)),
        bad->encode({}, std::span(g).first(bucket_size - 1), Bytes(slots).last(slot))};
    const Inbox inbox{slots, slot, sizes};
    EXPECT_EQ(good->decode({}, inbox, average).code, Code::mismatch) << text;
    EXPECT_EQ(inbox.culprit, 1) << text;
    EXPECT_EQ(good->decode({1, 0, {}, 0}, inbox, average).code, Code::mismatch) << text;
    EXPECT_EQ(inbox.culprit, 0) << text;
  }
}

// Pieces and tiles change no bit of the payload, the residual or the average.
TEST(Coded, AnyNumberOfThreadsGivesTheSameBits) {
  constexpr std::size_t large = 400'001;  // enough for three pieces
  const auto g = gradient(Shape::heavy, large, 1);
  for (const char* config : {"int8", "natural:memory=residual", "qsgd:bits=3,memory=residual"}) {
    std::vector<std::byte> payload;
    std::vector<float> average, residual;
    for (const int number : {1, 2, 3}) {
      set_threads(number);
      Worker worker(config, large);
      const auto sent = worker.step(g, 0);
      const auto kept = worker.state().at("w/v").values;
      if (number == 1) {
        payload = worker.frame;
        average = sent;
        residual = kept;
      }
      EXPECT_EQ(worker.frame, payload) << config;
      EXPECT_TRUE(same_bits(sent, average) && same_bits(kept, residual)) << config;
    }
    set_threads(1);
  }
}

}  // namespace
}  // namespace thinwire
