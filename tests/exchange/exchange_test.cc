// exchange_test.cc: bad input, damage in transit, order of collectives: a clear error, never a hang
// or silent damage.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/exchange/exchange.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <mutex>
#include <thread>

#include "tests/exchange/forwarding.h"
#include "tests/laws.h"

namespace thinwire {
namespace {

using namespace testing;

// Calls `tamper` on what was received, after each gather.
class Tampering final : public Forwarding {
 public:
  Tampering(Group& inner, std::function<void(Bytes, std::size_t)> tamper)
      : Forwarding(inner), tamper_(std::move(tamper)) {}

  Pending all_gather(ConstBytes mine, std::size_t slot_bytes, Bytes slots,
                     std::span<std::size_t> sizes, Stream stream) override {
    Forwarding::all_gather(mine, slot_bytes, slots, sizes, stream).wait();
    if (gathers_++ > 0) tamper_(slots, slot_bytes);  // the first one agrees on the set-up
    return {};
  }

 private:
  std::function<void(Bytes, std::size_t)> tamper_;
  int gathers_ = 0;
};

const std::vector<Bucket> one_bucket = {Bucket::single(0, "w", 5000)};

TEST(Exchange, ObserverSeesEveryStageInOrder) {
  run_local(2, [](Group& group) {
    Exchange exchange(group, one_bucket, Config::parse("topk:density=0.01"));
    std::vector<Stage> seen;
    exchange.observe([&](const Stage& stage) { seen.push_back(stage); });
    Model model = model_gradient(one_bucket, Shape::normal, seed_of(group, 0));
    exchange.submit(0, std::span(model[0]));
    EXPECT_NE(error_of([&] { exchange.observe({}); }), "");
    exchange.finish();
    exchange.observe({});
    take_step(exchange, model, 1);
    ASSERT_EQ(seen.size(), 3u);
    EXPECT_STREQ(seen[0].name, "encode");
    EXPECT_STREQ(seen[1].name, "exchange");
    EXPECT_STREQ(seen[2].name, "decode");
    for (const Stage& stage : seen) EXPECT_LE(stage.begin, stage.end);
    EXPECT_LE(seen[0].end, seen[1].begin);
    EXPECT_LE(seen[1].end, seen[2].begin);
  });
}

// Also: the sent values are back in memory when the error comes, so no gradient is lost.
TEST(Exchange, FlippedBitNamesTheRankAndLosesNothing) {
  for (const char* scheme : {"dgc:density=0.01,momentum=0", "onebit:memory=residual", "int8"}) {
    run_local(3, [&](Group& group) {
      Tampering tampering(group, [&](Bytes slots, std::size_t slot_bytes) {
        if (group.rank() == 1) slots[2 * slot_bytes + 40] ^= std::byte{4};
      });
      std::vector<std::unique_ptr<Compressor>> compressors;
      compressors.push_back(
          make_compressor(Config::parse(scheme), one_bucket[0], {group.rank(), group.size()}));
      Compressor& compressor = *compressors[0];
      Exchange exchange(tampering, one_bucket, std::move(compressors), scheme);
      const Model gradients = model_gradient(one_bucket, Shape::normal, seed_of(group, 0));
      Model model = gradients;
      if (group.rank() != 1) {
        take_step(exchange, model, 0);
        return;
      }
      const std::string text = error_of([&] { take_step(exchange, model, 0); });
      EXPECT_NE(text.find("rank 1"), std::string::npos) << text;
      EXPECT_NE(text.find("from rank 2"), std::string::npos) << text;
      EXPECT_NE(text.find("bucket 0"), std::string::npos) << text;
      EXPECT_NE(text.find("checksum"), std::string::npos) << text;
      // Every later call repeats the error of the failed step, and none hangs.
      EXPECT_EQ(error_of([&] { exchange.submit(0, std::span(model[0])); }), text);
      EXPECT_EQ(error_of([&] { exchange.finish(); }), text);
      State state;
      StateSaver saver(state);
      compressor.visit_state(saver);
      for (std::size_t i = 0; i < gradients[0].size(); ++i)
        ASSERT_NEAR(state.at("w/v").values[i], gradients[0][i], 1e-5) << scheme << " " << i;
    });
  }
}

TEST(Exchange, EveryFlippedByteOfAFrameIsFound) {
  std::vector<Bucket> small = {Bucket::single(0, "w", 300)};
  for (std::size_t at = 0; at < 60; ++at) {
    run_local(1, [&](Group& group) {
      std::size_t length = 0;
      Tampering tampering(group, [&](Bytes slots, std::size_t) { slots[at] ^= std::byte{0x11}; });
      Exchange exchange(tampering, small, Config::parse("topk:density=0.1,values=f32"));
      Model model = model_gradient(small, Shape::normal, 1);
      EXPECT_NE(error_of([&] { take_step(exchange, model, 0); }), "") << at << " of " << length;
    });
  }
}

// Every bucket counts, not only the last one.
TEST(Exchange, AnotherNameInAnEarlierBucketIsNamed) {
  run_local(2, [](Group& group) {
    const std::string name = group.rank() == 1 ? "other" : "first";
    const std::vector<Bucket> buckets = {Bucket::single(0, name, 10), Bucket::single(1, "last", 9)};
    const std::string text =
        error_of([&] { Exchange exchange(group, buckets, Config::parse("dense")); });
    EXPECT_NE(text.find("other parameter names"), std::string::npos) << text;
  });
}

TEST(Exchange, AnotherConfigurationIsNamed) {
  const auto try_with = [](const std::string& odd, const std::vector<Bucket>& odd_buckets,
                           const std::string& expected) {
    run_local(3, [&](Group& group) {
      const bool is_odd = group.rank() == 2;
      const std::string text = error_of([&] {
        Exchange exchange(group, is_odd ? odd_buckets : one_bucket,
                          Config::parse(is_odd ? odd : "dgc:density=0.01"));
      });
      EXPECT_NE(text.find("rank 2 was set up otherwise"), std::string::npos) << text;
      EXPECT_NE(text.find(expected), std::string::npos) << text;
    });
  };
  try_with("dgc:density=0.02", one_bucket, "density=0.02");
  try_with("dense", one_bucket, "scheme dense");
  try_with("dgc:density=0.01", {Bucket::single(0, "w", 5001)}, "5001 elements");
  try_with("dgc:density=0.01", {Bucket::single(0, "other", 5000)}, "other parameter names");
}

TEST(Exchange, WrongCallsAreErrors) {
  run_local(1, [](Group& group) {
    std::vector<float> one(1), wrong(5);  // outlive the exchange, which may still read them
    Exchange exchange(group, awkward_buckets(), Config::parse("dgc"));
    EXPECT_NE(error_of([&] { exchange.submit(9, std::span(one)); }).find("4 buckets"),
              std::string::npos);
    EXPECT_NE(
        error_of([&] { exchange.submit(0, std::span(wrong)); }).find("expected 1 elements, got 5"),
        std::string::npos);
    exchange.submit(0, std::span(one));
    EXPECT_NE(error_of([&] { exchange.submit(0, std::span(one)); }).find("twice"),
              std::string::npos);
    EXPECT_NE(error_of([&] { exchange.finish(); }).find("bucket 1: not submitted"),
              std::string::npos);
    State state;
    StateSaver saver(state);
    EXPECT_NE(error_of([&] { exchange.visit_state(saver); }).find("inside a step"),
              std::string::npos);
  });
}

TEST(Exchange, WrongSettingsAreErrors) {
  run_local(1, [](Group& group) {
    const auto text_of = [&](const std::string& config) {
      return error_of([&] { Exchange exchange(group, one_bucket, Config::parse(config)); });
    };
    EXPECT_NE(text_of("gzip").find("unknown scheme 'gzip'; known: dense"), std::string::npos);
    for (const char* density : {"0", "-0.1", "1.5", "nan", "many"}) {
      EXPECT_NE(text_of(std::string("dgc:density=") + density).find("'density'"), std::string::npos)
          << density;
    }
    EXPECT_NE(text_of("dgc:momentum=1").find("[0, 1)"), std::string::npos);
    EXPECT_NE(text_of("dgc:values=f64").find("f32, f16, bf16"), std::string::npos);
    EXPECT_NE(text_of("dense:density=1").find("no option 'density'"), std::string::npos);
  });
}

TEST(Exchange, WrongMemoryIsAnError) {
  run_local(1, [](Group& group) {
    for (const Scheme* scheme : schemes()) {
      std::vector<float> memory(5000);
      const Config config{scheme->name, {}};
      Exchange half(group, one_bucket, config);
      half.submit(0, TensorView(memory.data(), 5000, DType::bf16, {}));
      EXPECT_NE(error_of([&] { half.finish(); }).find("expected f32"), std::string::npos);
      Exchange cuda(group, one_bucket, config);
      cuda.submit(0, TensorView(memory.data(), 5000, DType::f32, {Device::Kind::cuda, 1}));
      EXPECT_NE(error_of([&] { cuda.finish(); }).find("cuda:1"), std::string::npos);
    }
  });
}

// encode() rejected this gradient, so it never entered the memory, and nothing may be put back for
// it: above all not what the previous step sent.
TEST(Exchange, RefusedMemoryLeavesTheResidualAlone) {
  for (const char* scheme : {"dgc:density=0.01,momentum=0", "int8", "csc:momentum=0", "powersgd"}) {
    run_local(1, [&](Group& group) {
      std::vector<std::unique_ptr<Compressor>> compressors;
      const std::vector<Bucket> matrix = {Bucket{0, {{"w", 0, 5000, {50, 100}}}}};
      compressors.push_back(make_compressor(Config::parse(scheme), matrix[0], {0, 1}));
      Compressor& compressor = *compressors[0];
      Exchange exchange(group, matrix, std::move(compressors), scheme);
      Model model = model_gradient(matrix, Shape::normal, 1);
      take_step(exchange, model, 0);
      const auto residual = [&] {
        State state;
        StateSaver saver(state);
        compressor.visit_state(saver);
        return state.at("w/v").values;
      };
      const std::vector<float> before = residual();
      exchange.submit(0, TensorView(model[0].data(), 5000, DType::bf16, {}));
      EXPECT_NE(error_of([&] { exchange.finish(); }).find("expected f32"), std::string::npos);
      EXPECT_TRUE(same_bits(residual(), before)) << scheme;
    });
  }
}

TEST(Exchange, SchemesMayDifferBetweenBuckets) {
  const std::vector<Bucket> buckets = {Bucket::single(0, "w", 1000), Bucket::single(1, "bias", 10)};
  run_local(2, [&](Group& group) {
    Exchange exchange(group, buckets, {Config::parse("dgc:density=0.01"), Config::parse("dense")});
    Model model = model_gradient(buckets, Shape::constant, 1);
    take_step(exchange, model, 0);
    for (const float value : model[1]) EXPECT_EQ(value, 0.5f);
  });
}

// At any point of a step: with nothing, a part or all of it submitted.
TEST(Exchange, ClosingWithoutFinishDoesNotHang) {
  const std::vector<Bucket> buckets = {Bucket::single(0, "w", 5000), Bucket::single(1, "x", 1),
                                       Bucket::single(2, "y", 70)};
  for (const char* scheme : {"dgc", "dgc:clip=1", "dense", "powersgd"}) {
    for (const int ranks : {1, 2, 4}) {
      for (std::size_t submitted = 0; submitted <= buckets.size(); ++submitted) {
        run_local(ranks, [&](Group& group) {
          Model model = model_gradient(buckets, Shape::normal, seed_of(group, 0));
          Exchange exchange(group, buckets, Config::parse(scheme));
          for (std::size_t b = 0; b < submitted; ++b)
            exchange.submit(static_cast<std::uint16_t>(b), std::span(model[b]));
        });
      }
    }
  }
}

// One rank leaves in the middle of a step. The others end with an error that names it.
TEST(Exchange, ClosingOnOneRankDoesNotHangTheOthers) {
  std::string texts[3];
  EXPECT_NE(error_of([&] {
              run_local(3, [&](Group& group) {
                Model model = model_gradient(one_bucket, Shape::normal, seed_of(group, 0));
                Exchange exchange(group, one_bucket, Config::parse("dgc"));
                if (group.rank() == 1) return;
                texts[group.rank()] = error_of([&] { take_step(exchange, model, 0); });
                if (!texts[group.rank()].empty()) fail(texts[group.rank()]);
              });
            }),
            "");
  EXPECT_NE(texts[0].find("rank 1"), std::string::npos) << texts[0];
  EXPECT_NE(texts[2].find("rank 1"), std::string::npos) << texts[2];
}

TEST(Exchange, ReportCountsBytes) {
  run_local(4, [](Group& group) {
    Exchange exchange(group, one_bucket, Config::parse("dense"));
    Model model = model_gradient(one_bucket, Shape::normal, 1);
    take_step(exchange, model, 0);
    const Report report = exchange.report();
    EXPECT_EQ(report.steps, 1u);
    EXPECT_EQ(report.payload_bytes, 20000u);
    EXPECT_EQ(report.dense_bytes, 20000u);
    EXPECT_EQ(report.traffic.sent, 30000u);  // ring: 2 * 3/4
    EXPECT_EQ(report.traffic.collectives, 1u);
  });
}

// Records the kind and size of each collective.
class Recording final : public Forwarding {
 public:
  Recording(Group& inner, std::vector<std::string>& log) : Forwarding(inner), log_(log) {}

  Pending all_reduce(Bytes data, DType dtype, ReduceOp op, Stream stream) override {
    log_.push_back("reduce " + std::to_string(data.size()));
    return Forwarding::all_reduce(data, dtype, op, stream);
  }
  Pending all_gather(ConstBytes mine, std::size_t slot_bytes, Bytes slots,
                     std::span<std::size_t> sizes, Stream stream) override {
    log_.push_back("gather " + std::to_string(slot_bytes));
    return Forwarding::all_gather(mine, slot_bytes, slots, sizes, stream);
  }

 private:
  std::vector<std::string>& log_;
};

// Buckets arrive in a different order, with different delays, on every rank. Collectives still
// start in one order.
TEST(Exchange, CollectivesLeaveInOneOrder) {
  const int ranks = 4;
  std::vector<Bucket> buckets;
  for (std::uint16_t b = 0; b < 6; ++b)
    buckets.push_back(Bucket::single(b, "w" + std::to_string(b), 100u + 50u * b));
  std::vector<std::vector<std::string>> logs(ranks);
  run_local(ranks, [&](Group& group) {
    Recording recording(group, logs[static_cast<std::size_t>(group.rank())]);
    std::vector<Config> configs;
    for (std::size_t b = 0; b < buckets.size(); ++b)
      configs.push_back(Config::parse(b % 2 ? "dense" : "dgc:density=0.1"));
    Exchange exchange(recording, buckets, configs);
    for (std::uint64_t step = 0; step < 10; ++step) {
      Model model = model_gradient(buckets, Shape::normal, seed_of(group, step));
      for (std::size_t i = 0; i < buckets.size(); ++i) {
        const std::size_t b =
            (i * 5 + static_cast<std::size_t>(group.rank()) + step) % buckets.size();
        std::this_thread::sleep_for(
            std::chrono::microseconds(random_below(seed_of(group, step), i, 300)));
        exchange.submit(static_cast<std::uint16_t>(b), std::span(model[b]));
      }
      exchange.finish();
    }
  });
  for (const auto& log : logs) EXPECT_EQ(log, logs[0]);
  EXPECT_EQ(logs[0].size(), 2 + 10 * buckets.size());  // and two agreements
}

// A scheme of two rounds: all ranks agree on the largest magnitude, then send 8-bit
// multiples of it to be summed. This is what TernGrad, CSC and PowerSGD need from the
// exchange, in its simplest form.
class SharedScale final : public Compressor {
 public:
  SharedScale(const Bucket& bucket, int world) : count_(bucket.elements()), world_(world) {}

  int rounds() const override { return 2; }
  Leg leg(std::uint64_t, int round) const override {
    return round == 0 ? Leg{Reduction::max, DType::f32, sizeof(float)}
                      : Leg{Reduction::sum, DType::i32, count_ * 4};
  }
  std::size_t encode(const Turn& turn, TensorView gradient, Bytes out) override {
    if (turn.round == 0) {
      float largest = 0;
      for (const float x : gradient.f32()) largest = std::max(largest, std::abs(x));
      std::memcpy(out.data(), &largest, sizeof largest);
    } else {
      for (std::size_t i = 0; i < count_; ++i) {
        const auto level = static_cast<std::int32_t>(std::lround(gradient.f32()[i] / scale_ * 127));
        std::memcpy(out.data() + 4 * i, &level, 4);
      }
    }
    return out.size();
  }
  Status decode(const Turn& turn, const Inbox& inbox, TensorView average) override {
    if (turn.round == 0) {
      std::memcpy(&scale_, inbox.data.data(), sizeof scale_);
    } else {
      for (std::size_t i = 0; i < count_; ++i) {
        std::int32_t level = 0;
        std::memcpy(&level, inbox.data.data() + 4 * i, 4);
        average.f32()[i] = static_cast<float>(level) * scale_ / 127 / static_cast<float>(world_);
      }
    }
    return {};
  }
  void undo(const Turn&) override {}
  void visit_state(StateVisitor&) override {}

 private:
  std::size_t count_;
  int world_;
  float scale_ = 0;
};

// Second rounds start in one order too, whatever the ranks' stalls; the local engine rejects any
// other order.
TEST(Exchange, SecondRoundsLeaveInOneOrder) {
  const int ranks = 4;
  std::vector<Bucket> buckets;
  for (std::uint16_t b = 0; b < 7; ++b)
    buckets.push_back(Bucket::single(b, "w" + std::to_string(b), 64u + b));
  std::vector<std::vector<std::string>> logs(ranks);
  run_local(ranks, [&](Group& group) {
    Recording recording(group, logs[static_cast<std::size_t>(group.rank())]);
    std::vector<std::unique_ptr<Compressor>> compressors;
    for (const Bucket& bucket : buckets)
      compressors.push_back(std::make_unique<SharedScale>(bucket, ranks));
    Exchange exchange(recording, buckets, std::move(compressors), "shared scale");
    for (std::uint64_t step = 0; step < 20; ++step) {
      Model model = model_gradient(buckets, Shape::constant, 1);
      for (std::size_t i = 0; i < buckets.size(); ++i) {
        const std::size_t b = (i * 3 + static_cast<std::size_t>(group.rank())) % buckets.size();
        std::this_thread::sleep_for(
            std::chrono::microseconds(random_below(seed_of(group, step), i, 400)));
        exchange.submit(static_cast<std::uint16_t>(b), std::span(model[b]));
      }
      exchange.finish();
      for (const auto& bucket : model) {
        for (const float value : bucket) ASSERT_EQ(value, 0.5f);
      }
    }
  });
  for (const auto& log : logs) EXPECT_EQ(log, logs[0]);
  // The agreements on the set-up and on the step, the first rounds of buckets 0, 1, 2, then the
  // second round of bucket 0 (64 elements), then 3, then the second round of 1, ...
  const std::vector<std::string> expected = {"gather 1024", "reduce 16",  "reduce 4", "reduce 4",
                                             "reduce 4",    "reduce 256", "reduce 4", "reduce 260"};
  EXPECT_EQ(std::vector<std::string>(logs[0].begin(), logs[0].begin() + 8), expected);
}

}  // namespace
}  // namespace thinwire
