// told_test.cc: what an exchange tells: the first error again and again, and who sends what; and
// what one bucket alone decides for all.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <limits>

#include "tests/exchange/forwarding.h"
#include "tests/void_laws.h"
#include "thinwire/exchange/agreement.h"
#include "thinwire/exchange/striped.h"

namespace thinwire::told {

using namespace testing;

static const std::vector<Bucket> two = {Bucket::single(0, "a", 3), Bucket::single(1, "b", 2)};

static bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// ---- what one bucket decides for all ----

// The norm is that of all buckets, whichever of them asks for it.
TEST(Told, AnyBucketMayAskForTheNorm) {
  const std::string clip = "dgc:clip=1,density=1,momentum=0,values=f32",
                    plain = "topk:density=1,values=f32";
  const auto clipped = [](const std::vector<std::string>& texts) {
    std::vector<Bucket> buckets;
    std::vector<Config> configs;
    for (const std::string& text : texts) {
      const auto id = static_cast<std::uint16_t>(buckets.size());
      buckets.push_back(Bucket::single(id, "w" + std::to_string(id), 1));
      configs.push_back(Config::parse(text));
    }
    Model model(texts.size(), {2.0f});
    run_local(1, [&](Group& group) {
      Exchange exchange(group, buckets, configs);
      take_step(exchange, model, 0);
    });
    return model;
  };
  EXPECT_FLOAT_EQ(clipped({clip})[0][0], 1.0f);
  EXPECT_FLOAT_EQ(clipped({clip, plain, plain, plain})[0][0], 0.5f);
  EXPECT_FLOAT_EQ(clipped({plain, plain, plain, clip})[3][0], 0.5f);
  EXPECT_FLOAT_EQ(clipped({clip, plain, plain, plain})[1][0], 2.0f);
}

// A single bucket has a memory; the infinity is in another one, without.
TEST(Told, AnyBucketMayHaveTheOnlyMemory) {
  for (std::size_t only = 0; only < 4; ++only) {
    std::vector<Config> configs(4, Config::parse("dense"));
    configs[only] = Config::parse("dgc:density=0.02");
    run_local(2, [&](Group& group) { law_nothing_stays(group, configs); });
  }
}

// ---- errors ----

class Failing final : public Compressor {
 public:
  Leg leg(std::uint64_t, int) const override { return {Reduction::gather, DType::f32, 1}; }
  std::size_t encode(const Turn&, TensorView, Bytes) override { fail("the first cause"); }
  Status decode(const Turn&, const Inbox&, TensorView) override { return {}; }
  void undo(const Turn&) override {}
  void visit_state(StateVisitor&) override {}
};

TEST(Told, TheFirstErrorEndsEveryLaterCall) {
  run_local(1, [](Group& group) {
    std::vector<float> a(3), b(2);
    std::vector<std::unique_ptr<Compressor>> failing;
    for (int i = 0; i < 2; ++i) failing.push_back(std::make_unique<Failing>());
    Exchange exchange(group, two, std::move(failing), "failing");
    exchange.submit(0, a);
    (void)error_of([&] { exchange.submit(1, b); });  // it may have failed already
    const std::string text = "the first cause";
    EXPECT_EQ(error_of([&] { exchange.finish(); }), text);
    EXPECT_EQ(error_of([&] { exchange.finish(); }), text);
    EXPECT_EQ(error_of([&] { exchange.submit(0, a); }), text);
    EXPECT_EQ(error_of([&] { exchange.submit(9, a); }), text);
    EXPECT_EQ(error_of([&] { exchange.submit(0, b); }), text);
    EXPECT_EQ(exchange.report().steps, 0u);
  });
}

// Encodes its first step and refuses the second; counts what is taken back.
class Once final : public Compressor {
 public:
  explicit Once(int& undone) : undone_(undone) {}
  Leg leg(std::uint64_t, int) const override { return {Reduction::gather, DType::f32, 1}; }
  std::size_t encode(const Turn& turn, TensorView, Bytes) override {
    if (turn.step > 0) fail("no more");
    return 1;
  }
  Status decode(const Turn&, const Inbox&, TensorView) override { return {}; }
  void undo(const Turn&) override { ++undone_; }
  void visit_state(StateVisitor&) override {}

 private:
  int& undone_;
};

TEST(Told, AStepThatWasTakenIsNotTakenBackLater) {
  run_local(1, [](Group& group) {
    int undone = 0;
    {
      std::vector<std::unique_ptr<Compressor>> once;
      for (int i = 0; i < 2; ++i) once.push_back(std::make_unique<Once>(undone));
      Exchange exchange(group, two, std::move(once), "once");
      Model model = {{1, 2, 3}, {4, 5}};
      take_step(exchange, model, 0);
      EXPECT_EQ(error_of([&] { take_step(exchange, model, 0); }), "no more");
    }
    EXPECT_EQ(undone, 0);
  });
}

TEST(Told, CallsInsideAStepAreRefused) {
  run_local(1, [](Group& group) {
    std::vector<float> a(3), b(2);
    Exchange exchange(group, two, Config::parse("dense"));
    exchange.submit(1, b);
    EXPECT_EQ(error_of([&] { exchange.observe({}); }),
              "rank 0: observer was set inside a step; call finish() first");
    EXPECT_EQ(error_of([&] { exchange.serve(); }),
              "rank 0 works: submit() its gradients and finish(); serve() is for server ranks");
    exchange.submit(0, a);
    EXPECT_EQ(exchange.finish().step, 0u);
    EXPECT_EQ(error_of([&] { exchange.observe({}); }), "");
  });
}

// One in any bit is a difference, also where no checkpoint counts so far.
TEST(SameStep, EveryBitCounts) {
  run_local(2, [](Group& group) {
    for (int bit = 0; bit < 62; ++bit) {
      const std::uint64_t other = std::uint64_t{1} << bit, mine = group.rank() == 1 ? other : 0;
      const std::string text = error_of([&] { check_same_step(group, "step", mine); });
      EXPECT_TRUE(has(text, "rank 0 begins at step 0, rank 1 at step " + std::to_string(other)))
          << bit << text;
      EXPECT_EQ(error_of([&] { check_same_step(group, "step", other); }), "") << bit;
    }
  });
}

// Its last round writes averages, so their memory is looked at, too.
TEST(Striped, OtherMemoryThanTheBucketsIsRefused) {
  const Bucket bucket = Bucket::single(5, "w", 300);
  StripedCompressor striped(Config::parse("topk:density=0.1"), ExchangeKind::parse("split"), bucket,
                            {0, 1});
  std::vector<float> values(300);
  std::vector<std::byte> bytes(striped.leg(0, 0).bytes);
  for (const TensorView& wrong :
       {TensorView{values.data(), 299, DType::f32, {}},
        TensorView{values.data(), 300, DType::f16, {}},
        TensorView{values.data(), 300, DType::f32, {Device::Kind::cuda, 3}}}) {
    const std::string early = error_of([&] { striped.encode({}, wrong, bytes); });
    EXPECT_TRUE(has(early, "rank 0, bucket 5: expected")) << early;
    const std::string late = error_of([&] { (void)striped.decode({0, 1, {}, 0}, {}, wrong); });
    EXPECT_TRUE(has(late, "rank 0, bucket 5: expected")) << late;
  }
}

// Schemes that a stripe's owner could not decode alone: by options, not only by name.
TEST(ExchangeKind, OptionsThatSumAreNamedToo) {
  const ExchangeKind split = ExchangeKind::parse("split");
  const auto clash = [&](const char* text) {
    return error_of([&] { check_fit(split, Config::parse(text)); });
  };
  for (const char* text : {"signum:travel=sum", "terngrad", "csc", "csc:select=previous", "randomk",
                           "powersgd", "dense"})
    EXPECT_TRUE(has(clash(text), "travels by all-reduce")) << text;
  EXPECT_EQ(clash("onebit"), "");
}

// Frames in two rounds: none of our schemes, but a program may have its own.
TEST(ExchangeKind, SchemesOfSeveralRoundsAreNamed) {
  class TwoRounds final : public Compressor {
   public:
    TwoRounds(const Bucket& bucket, const Site& site)
        : inner_(make_compressor(Config::parse("topk"), bucket, site)) {}
    int rounds() const override { return 2; }
    Leg leg(std::uint64_t step, int) const override { return inner_->leg(step, 0); }
    std::size_t encode(const Turn& turn, TensorView gradient, Bytes out) override {
      return inner_->encode({turn.step, 0, {}, 0}, gradient, out);
    }
    Status decode(const Turn& turn, const Inbox& inbox, TensorView average) override {
      return inner_->decode({turn.step, 0, {}, 0}, inbox, average);
    }
    void undo(const Turn& turn) override { inner_->undo(turn); }
    void visit_state(StateVisitor&) override {}

   private:
    std::unique_ptr<Compressor> inner_;
  };
  static const Scheme scheme = [] {
    Scheme own;
    own.name = "told_two_rounds";
    own.id = 201;
    own.make = [](const Options&, const Bucket& bucket,
                  const Site& site) -> std::unique_ptr<Compressor> {
      return std::make_unique<TwoRounds>(bucket, site);
    };
    return own;
  }();
  register_scheme(scheme);
  const std::string text =
      error_of([] { check_fit(ExchangeKind::parse("split"), Config::parse("told_two_rounds")); });
  EXPECT_TRUE(has(text, "scheme 'told_two_rounds' takes 2 rounds; exchange split needs")) << text;
}

TEST(ExchangeKind, NumbersTooLongAreRefused) {
  EXPECT_TRUE(has(error_of([] { ExchangeKind::parse("server:99999999999"); }), "expected auto"));
}

// Columns of one element have rows, too; and bucket 3 of four stripes has the numbers from 24 on.
TEST(Stripes, OfAColumnAreCutBetweenItsRows) {
  const auto halves = cut(Bucket{0, {{"w", 0, 1000, {1000, 1}}}}, 2);
  EXPECT_EQ(halves[1].first, 500u);
  EXPECT_EQ(halves[1].bucket.parameters[0].shape, (std::vector<std::int64_t>{500, 1}));
  const auto quarters = cut(Bucket{3, {{"w", 0, 1000, {}}}}, 4);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(quarters[i].bucket.id, 24 + 2 * i);
}

// Adds up what is handed to the collectives; while `damage` is set, pieces arrive damaged.
class Weighing final : public Forwarding {
 public:
  using Forwarding::Forwarding;
  std::vector<std::size_t> pieces;  // of the last scatter, by rank
  std::size_t average = 0;          // bytes of the last gather
  std::size_t all = 0;
  bool damage = false;

  Pending all_gather(ConstBytes mine, std::size_t slot_bytes, Bytes slots,
                     std::span<std::size_t> sizes, Stream stream) override {
    average = mine.size();
    all += average;
    return Forwarding::all_gather(mine, slot_bytes, slots, sizes, stream);
  }
  Pending all_to_all(ConstBytes mine, std::span<const std::size_t> mine_sizes,
                     std::size_t slot_bytes, Bytes slots, std::span<std::size_t> sizes,
                     Stream stream) override {
    pieces.assign(mine_sizes.begin(), mine_sizes.end());
    for (const std::size_t size : pieces) all += size;
    Forwarding::all_to_all(mine, mine_sizes, slot_bytes, slots, sizes, stream).wait();
    for (std::size_t rank = 0; damage && rank < sizes.size(); ++rank) {
      if (sizes[rank] > 0) slots[rank * slot_bytes + sizes[rank] - 1] ^= std::byte{1};
    }
    return {};
  }
};

// Workers send gradients to servers only, and no averages; a server sends averages only.
TEST(Striped, NobodySendsWhatNobodyNeeds) {
  run_local(3, [](Group& group) {
    Weighing line(group);
    const std::vector<Bucket> buckets = {Bucket::single(0, "w", 500)};
    Exchange exchange(line, buckets, Config::parse("topk:density=0.1"),
                      {.kind = ExchangeKind::parse("server:1")});
    line.all = 0;  // without the agreement
    const bool server = group.rank() == 2;
    for (std::uint64_t step = 0; step < 3; ++step) {
      Model model = model_gradient(buckets, Shape::normal, seed_of(group, step));
      take_step(exchange, model, 0);
      EXPECT_EQ(line.pieces[0] + line.pieces[1], 0u);
      EXPECT_EQ(line.pieces[2] > 0, !server);
      EXPECT_EQ(line.average > 0, server);
    }
    EXPECT_EQ(exchange.report().payload_bytes, line.all);
  });
}

// Nothing was averaged yet: there is no owner's memory to restore.
TEST(Striped, AFirstStepThatFailsLosesNothing) {
  run_local(2, [](Group& group) {
    Weighing line(group);
    line.damage = true;
    const std::vector<Bucket> buckets = {Bucket::single(0, "w", 500)};
    Exchange exchange(line, buckets, Config::parse("topk:density=0.1"),
                      {.kind = ExchangeKind::parse("split")});
    Model model = model_gradient(buckets, Shape::normal, seed_of(group, 0));
    const Model given = model;
    EXPECT_NE(error_of([&] { take_step(exchange, model, 0); }), "");
    const State state = state_of(exchange);
    for (std::size_t i = 0; i < 500; ++i)
      EXPECT_NEAR(state.at("w/v").values[i], given[0][i], 1e-6) << i;
    for (const auto& [name, entry] : state) {
      if (!name.ends_with("/owner/v")) continue;
      for (const float value : entry.values) EXPECT_EQ(value, 0.0f) << name;
    }
  });
}

TEST(Told, WhatNobodySetIsNothing) {
  EXPECT_EQ(StepResult().step, 0u);
  EXPECT_FALSE(StepResult().skipped);
  EXPECT_EQ(Stage().bucket, 0u);
  EXPECT_EQ(Stage().round, 0u);
  EXPECT_EQ(ExchangeOptions().fuse_bytes, 0u);
  EXPECT_EQ(ExchangeOptions().str(), "");
  EXPECT_EQ(ExchangeKind().str(), "auto");
  EXPECT_EQ(ExchangeKind().servers, 0);
  const Report report;
  EXPECT_EQ(report.steps + report.skipped + report.payload_bytes + report.dense_bytes, 0u);
  EXPECT_EQ(report.encode_seconds + report.wait_seconds + report.decode_seconds, 0);
  EXPECT_EQ(Stripe().first, 0u);
  EXPECT_EQ(Piece().parameter, 0u);
  EXPECT_TRUE(Piece().whole);
}

}  // namespace thinwire::told
