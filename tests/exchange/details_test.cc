// details_test.cc: what is easily overlooked in an exchange: streams that are handed on, steps that
// fail before anything was encoded, the norm over all buckets, and the state of stripes.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/exchange/forwarding.h"
#include "tests/laws.h"
#include "thinwire/exchange/stripe_state.h"

namespace thinwire::details {

using namespace testing;

static const std::vector<Bucket> two = {Bucket::single(0, "a", 2), Bucket::single(1, "b", 2)};

// Notes the streams of its sums.
class Streams final : public Forwarding {
 public:
  using Forwarding::Forwarding;
  std::vector<void*> seen;

  Pending all_reduce(Bytes data, DType dtype, ReduceOp op, Stream stream) override {
    seen.push_back(stream.handle);
    return Forwarding::all_reduce(data, dtype, op, stream);
  }
};

TEST(ExchangeDetails, CollectivesRunInTheStreamOfTheirBucket) {
  run_local(1, [](Group& group) {
    Streams streams(group);
    Exchange exchange(streams, two, Config::parse("dense"));
    std::vector<float> a(2), b(2);
    int one = 0, other = 0;
    exchange.submit(0, a, {&one});
    exchange.submit(1, b, {&other});
    exchange.finish();
    EXPECT_EQ(streams.seen, (std::vector<void*>{&one, &other}));
  });
}

// Refuses to encode, and counts what is taken back.
class Unwilling final : public Compressor {
 public:
  explicit Unwilling(int& undone) : undone_(undone) {}
  Leg leg(std::uint64_t, int) const override { return {Reduction::gather, DType::f32, 1}; }
  std::size_t encode(const Turn&, TensorView, Bytes) override { fail("no"); }
  Status decode(const Turn&, const Inbox&, TensorView) override { return {}; }
  void undo(const Turn&) override { ++undone_; }
  void visit_state(StateVisitor&) override {}

 private:
  int& undone_;
};

TEST(ExchangeDetails, WhatWasNeverEncodedIsNotTakenBack) {
  run_local(1, [](Group& group) {
    int undone = 0;
    std::vector<std::unique_ptr<Compressor>> unwilling;
    unwilling.push_back(std::make_unique<Unwilling>(undone));
    std::vector<float> values(2);
    {
      Exchange exchange(group, {two[0]}, std::move(unwilling), "unwilling");
      exchange.submit(0, values);
      EXPECT_EQ(error_of([&] { exchange.finish(); }), "no");
    }
    EXPECT_EQ(undone, 0);
  });
}

// 2 and 3 in one bucket, 6 in the other: a length of 7.
TEST(ExchangeDetails, ClipsByTheNormOfAllBuckets) {
  run_local(1, [](Group& group) {
    Exchange exchange(group, two, Config::parse("dgc:clip=1,density=1,momentum=0,values=f32"));
    for (int step = 0; step < 2; ++step) {
      Model model = {{2, 3}, {0, -6}};
      take_step(exchange, model, 0);
      EXPECT_NEAR(model[0][0], 2.0 / 7, 1e-6);
      EXPECT_NEAR(model[0][1], 3.0 / 7, 1e-6);
      EXPECT_NEAR(model[1][1], -6.0 / 7, 1e-6);
    }
  });
}

// ---- the state of stripes ----

static std::string place(const std::string& name, const StateEntry& entry) {
  const auto owned = owned_residual(name, entry);
  return owned ? owned->parameter + " " + std::to_string(owned->from) : "none";
}

TEST(Owned, OnlyResidualsOfOwnersAreTaken) {
  const StateEntry four{Share::summed, std::vector<float>(4), 0, true};
  const StateEntry local{Share::local, std::vector<float>(4), 0, true};
  const StateEntry number{Share::summed, {}, 4, false};
  EXPECT_EQ(place("w[8:12]/owner/v", four), "w 8");
  EXPECT_EQ(place("w/owner/v", local), "none");
  EXPECT_EQ(place("w/owner/v", number), "none");
  EXPECT_EQ(place("w[8:12]/owner", four), "none");
  // Brackets that no cut has made are the parameter's own.
  for (const char* own : {"w[8:12]x", "w[:4]", "w[8:12x]", "w[8:]", "w[]", "w[x:4]", "w]", "w[8"})
    EXPECT_EQ(place(std::string(own) + "/owner/v", four), std::string(own) + " 0");
}

TEST(Owned, FoldingAddsToWhatThereIs) {
  const auto tensor = [](std::vector<float> values) {
    return StateEntry{Share::summed, std::move(values), 0, true};
  };
  State state = {{"a/owner/v", tensor({1, 2})},  // before the rank's own
                 {"a/v", tensor({10, 20})},
                 {"b/v", tensor({30, 40, 50})},
                 {"b[1:3]/owner/v", tensor({3, 4})},  // behind it
                 {"bucket0/density", {Share::local, {}, 0.5, false}}};
  fold_owned(state, {Bucket{0, {{"a", 0, 2, {}}, {"b", 2, 3, {}}, {"c", 5, 1, {}}}}}, 2);
  EXPECT_EQ(state, (State{{"a/v", tensor({12, 24})},
                          {"b/v", tensor({30, 46, 58})},
                          {"bucket0/density", {Share::local, {}, 0.5, false}}}));
}

// Shares and values of cut parameters are those of the parts, and each is told once.
TEST(StripeVisitor, JoinsThePartsOfAParameter) {
  const Bucket bucket = Bucket::single(0, "w", 256);
  const std::vector<Stripe> stripes = cut(bucket, 2);
  std::vector<float> parts[2];
  State state;
  StateSaver saver(state);
  StripeVisitor joining(saver, bucket, "bucket0/stripe");
  for (std::size_t i = 0; i < 2; ++i) {
    parts[i].assign(stripes[i].count(), static_cast<float>(i + 1));
    joining.enter(stripes[i], i);
    joining.tensor(stripes[i].bucket.parameters[0].name + "/m", parts[i], Share::replicated);
    double number = static_cast<double>(i);
    joining.number("bucket" + std::to_string(stripes[i].bucket.id) + "/t", number, Share::local);
  }
  EXPECT_FALSE(state.contains("w/m"));
  EXPECT_TRUE(joining.join());
  ASSERT_EQ(state.size(), 3u);
  EXPECT_EQ(state.at("w/m").share, Share::replicated);
  EXPECT_EQ(std::ranges::count(state.at("w/m").values, 1.0f), 128);
  EXPECT_EQ(state.at("w/m").values.back(), 2.0f);
  EXPECT_EQ(state.at("bucket0/stripe1/t").number, 1);
}

// Loading a cut parameter gives each stripe its part in the second pass, and nothing else twice.
TEST(StripeVisitor, GivesEveryStripeItsPart) {
  const Bucket bucket = Bucket::single(0, "w", 256);
  const std::vector<Stripe> stripes = cut(bucket, 2);
  State state;
  state["w/m"] = {Share::summed, std::vector<float>(256), 0, true};
  for (std::size_t i = 0; i < 256; ++i) state["w/m"].values[i] = static_cast<float>(i);
  for (const char* name : {"bucket0/stripe0/t", "bucket0/stripe1/t"})
    state[name] = {Share::local, {}, 7, false};
  StateLoader loader(state);
  StripeVisitor joining(loader, bucket, "bucket0/stripe");
  for (const bool second : {false, true}) {
    for (std::size_t i = 0; i < 2; ++i) {
      std::vector<float> part(stripes[i].count());  // goes when the visit ends
      double number = 1;
      joining.enter(stripes[i], i);
      joining.tensor(stripes[i].bucket.parameters[0].name + "/m", part, Share::summed);
      joining.number("bucket" + std::to_string(stripes[i].bucket.id) + "/t", number, Share::local);
      EXPECT_EQ(number, second ? 1 : 7);
      EXPECT_EQ(part.front(), second ? static_cast<float>(stripes[i].first) : 0.0f);
    }
    if (!second) {
      EXPECT_TRUE(joining.join());
    }
  }
}

TEST(Snapshot, GoesBackToTheLastOne) {
  std::vector<float> values = {1, 2};
  double first = 3, second = 4;
  const auto visit = [&](StateVisitor& visitor) {
    visitor.number("x", first, Share::local);
    visitor.tensor("v", values, Share::local);
    visitor.number("y", second, Share::local);
  };
  Snapshot snapshot;
  snapshot.take(visit);
  values = {5, 6}, first = 7, second = 8;
  snapshot.take(visit);
  values = {0, 0}, first = second = 0;
  snapshot.put_back(visit);
  EXPECT_EQ(values, (std::vector<float>{5, 6}));
  EXPECT_EQ(first, 7);
  EXPECT_EQ(second, 8);
}

}  // namespace thinwire::details
