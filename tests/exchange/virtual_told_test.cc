// virtual_told_test.cc: what a VirtualExchange refuses, and what it tells of errors.
// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "tests/exchange/virtual_laws.h"

namespace thinwire::virtual_told {

using namespace testing;

static const std::vector<Bucket> two = {Bucket::single(0, "a", 3), Bucket::single(1, "b", 2)};

static bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

static void submit_all(VirtualExchange& exchange, std::vector<Model>& models) {
  for (std::size_t worker = 0; worker < models.size(); ++worker) {
    for (std::uint16_t b = 0; b < 2; ++b)
      exchange.submit(static_cast<int>(worker), b, models[worker][b]);
  }
}

static std::vector<Model> models_of(int workers) {
  std::vector<Model> models;
  for (int worker = 0; worker < workers; ++worker)
    models.push_back(model_gradient(two, Shape::normal, static_cast<std::uint64_t>(worker)));
  return models;
}

// Refused before anything is encoded: the step goes on when it is put right.
TEST(VirtualTold, WrongCallsAreRefused) {
  VirtualExchange exchange(2, two, Config::parse("topk:density=1,values=f32"));
  std::vector<Model> models = models_of(2);
  EXPECT_EQ(exchange.workers(), 2);
  EXPECT_EQ(error_of([&] { exchange.submit(2, 0, models[0][0]); }),
            "worker 2: there are 2 workers, numbered from 0");
  EXPECT_EQ(error_of([&] { exchange.submit(-1, 0, models[0][0]); }),
            "worker -1: there are 2 workers, numbered from 0");
  EXPECT_TRUE(has(error_of([&] { exchange.submit(1, 7, models[0][0]); }),
                  "rank 1, step 0, bucket 7: there are 2 buckets"));
  EXPECT_TRUE(has(error_of([&] { exchange.submit(1, 0, models[0][1]); }),
                  "rank 1, step 0, bucket 0: expected 3 elements, got 2"));
  const TensorView remote{models[1][0].data(), 3, DType::f32, {Device::Kind::cuda, 0}};
  EXPECT_TRUE(has(error_of([&] { exchange.submit(1, 0, remote); }),
                  "rank 1, step 0, bucket 0: the gradient is on a device; virtual workers"));
  const TensorView half{models[1][0].data(), 3, DType::f16, {}};
  EXPECT_TRUE(has(error_of([&] { exchange.submit(1, 0, half); }), "expected"));
  exchange.submit(0, 0, models[0][0]);
  exchange.submit(0, 1, models[0][1]);
  EXPECT_TRUE(has(error_of([&] { exchange.submit(0, 1, models[1][1]); }), "submitted twice"));
  exchange.submit(1, 1, models[1][1]);
  EXPECT_TRUE(has(error_of([&] { exchange.finish(); }), "rank 1, step 0, bucket 0: not submitted"));
  EXPECT_EQ(error_of([&] { state_of(exchange, 1); }),
            "rank 1: state was visited inside a step; call finish() first");
  exchange.submit(1, 0, models[1][0]);
  const float mean = 0.5f * models[0][0][0] + 0.5f * models[1][0][0];
  EXPECT_FALSE(exchange.finish().skipped);
  EXPECT_EQ(models[0][0][0], mean);
  EXPECT_EQ(error_of([&] { (void)exchange.report(2); }),
            "rank 2: there are 2 ranks, numbered from 0");
  EXPECT_EQ(error_of([&] { state_of(exchange, -1); }),
            "rank -1: there are 2 ranks, numbered from 0");
}

TEST(VirtualTold, WorkersThatShareMemoryAreNamed) {
  VirtualExchange exchange(3, two, Config::parse("dense"));
  std::vector<Model> models = models_of(3);
  for (std::uint16_t b = 0; b < 2; ++b) {
    exchange.submit(0, b, models[0][b]);
    exchange.submit(2, b, models[2][b]);
  }
  exchange.submit(1, 0, models[1][0]);
  exchange.submit(1, 1, std::span(models[2][0]).subspan(1));
  const std::string text = error_of([&] { exchange.finish(); });
  EXPECT_EQ(text,
            "worker 1, bucket 1: its gradient shares memory with that of worker 2, bucket 0; every "
            "worker needs memory of its own");
}

TEST(VirtualTold, SetUpsThatCannotBe) {
  EXPECT_EQ(error_of([] { VirtualExchange(0, two, Config::parse("dense")); }),
            "virtual exchange: expected at least 1 worker, got 0");
  const std::string split = error_of([] {
    VirtualExchange(2, two, Config::parse("dense"), {.kind = ExchangeKind::parse("split")});
  });
  EXPECT_TRUE(has(split, "travels by all-reduce")) << split;
}

TEST(VirtualTold, StatesOfOtherStepsAreRefused) {
  VirtualExchange exchange(3, two, Config::parse("topk"));
  State state = state_of(exchange, 1);
  state.at("exchange/step").number = 7;
  StateLoader loader(state);
  exchange.visit_state(1, loader);
  std::vector<Model> models = models_of(3);
  submit_all(exchange, models);
  EXPECT_EQ(error_of([&] { exchange.finish(); }),
            "rank 0: rank 0 begins at step 0, rank 1 at step 7; load the checkpoint of one and the "
            "same step on all ranks, or on none");
}

// Counts what is encoded and taken back; one rank fails in its second bucket.
class Fails final : public Compressor {
 public:
  Fails(int& kept, bool fails, Code code = Code::ok) : kept_(kept), fails_(fails), code_(code) {}
  Leg leg(std::uint64_t, int) const override { return {Reduction::gather, DType::f32, 1}; }
  std::size_t encode(const Turn&, TensorView, Bytes) override {
    if (fails_ && code_ == Code::ok) fail("the cause");
    ++kept_;
    return fails_ && code_ == Code::truncated ? 2 : 1;
  }
  Status decode(const Turn&, const Inbox& inbox, TensorView) override {
    inbox.culprit = 1;
    return {fails_ ? code_ : Code::ok, "the cause"};
  }
  void undo(const Turn&) override {
    --kept_;
    if (fails_ && code_ == Code::bad_checksum) fail("the second cause");
  }
  void visit_state(StateVisitor&) override {}

 private:
  int& kept_;
  bool fails_;
  Code code_;
};

static VirtualExchange::Make failing(int& kept, int rank, Code code) {
  return [&kept, rank, code](const Site& site) {
    std::vector<std::unique_ptr<Compressor>> all;
    all.push_back(std::make_unique<Fails>(kept, false));
    all.push_back(std::make_unique<Fails>(kept, site.rank == rank, code));
    return all;
  };
}

TEST(VirtualTold, AnErrorNamesTheRankAndTakesAllBack) {
  for (const Code code : {Code::ok, Code::bad_value}) {
    int kept = 0;
    VirtualExchange exchange(3, two, failing(kept, 2, code));
    std::vector<Model> models = models_of(3);
    submit_all(exchange, models);
    const std::string text = error_of([&] { exchange.finish(); });
    EXPECT_EQ(text, code == Code::ok ? "rank 2: the cause"
                                     : "rank 2, step 0, bucket 1, bytes from rank 1: the cause; "
                                       "the step was not taken, restart from the last checkpoint");
    EXPECT_EQ(kept, 0);
    EXPECT_EQ(error_of([&] { exchange.finish(); }), text);
    EXPECT_EQ(error_of([&] { exchange.submit(0, 0, models[0][0]); }), text);
    EXPECT_EQ(error_of([&] { state_of(exchange, 0); }), "");
    EXPECT_EQ(exchange.report().steps, 0u);
  }
}

TEST(VirtualTold, AMemoryThatIsWrongIsNotSaved) {
  int kept = 0;
  VirtualExchange exchange(2, two, failing(kept, 1, Code::bad_checksum));
  std::vector<Model> models = models_of(2);
  submit_all(exchange, models);
  const std::string text = error_of([&] { exchange.finish(); });
  EXPECT_TRUE(has(text, "bytes from rank 1: the cause")) << text;
  EXPECT_TRUE(
      has(text, "rank 1, step 0, bucket 1: what was sent could not be put back: the second"))
      << text;
  EXPECT_EQ(error_of([&] { state_of(exchange, 0); }), text);
}

// It would write into the next rank's memory.
TEST(VirtualTold, MoreBytesThanAnnouncedAreAnError) {
  int kept = 0;
  VirtualExchange exchange(2, two, failing(kept, 1, Code::truncated));
  std::vector<Model> models = models_of(2);
  submit_all(exchange, models);
  const std::string text = error_of([&] { exchange.finish(); });
  EXPECT_TRUE(has(text, "rank 1 wants to send 2 bytes to a slot of 1")) << text;
}

// Ranks that disagree on a collective, or on the outcome of a step.
class Odd final : public Compressor {
 public:
  Odd(std::size_t bytes, Code code) : bytes_(bytes), code_(code) {}
  Leg leg(std::uint64_t, int) const override { return {Reduction::gather, DType::f32, bytes_}; }
  std::size_t encode(const Turn&, TensorView, Bytes) override { return 1; }
  Status decode(const Turn&, const Inbox&, TensorView) override { return {code_, "odd"}; }
  void undo(const Turn&) override {}
  void visit_state(StateVisitor&) override {}

 private:
  std::size_t bytes_;
  Code code_;
};

static std::string odd(std::size_t bytes, Code code) {
  VirtualExchange exchange(2, {Bucket::single(0, "a", 3)}, [&](const Site& site) {
    std::vector<std::unique_ptr<Compressor>> all;
    const bool is = site.rank == 1;
    all.push_back(std::make_unique<Odd>(is ? bytes : 4, is ? code : Code::ok));
    return all;
  });
  Model models = {{1, 2, 3}, {4, 5, 6}};
  for (int worker = 0; worker < 2; ++worker)
    exchange.submit(worker, 0, models[static_cast<std::size_t>(worker)]);
  return error_of([&] { exchange.finish(); });
}

TEST(VirtualTold, RanksThatDisagreeAreNamed) {
  EXPECT_EQ(odd(4, Code::ok), "");
  EXPECT_TRUE(has(odd(5, Code::ok), "rank 0 calls all_gather with slots of 4 bytes, rank 1 calls"));
  // Beyond the memory of the first rank's slots.
  EXPECT_TRUE(has(odd(400, Code::ok), "slots of 4 bytes, rank 1 calls"));
  EXPECT_TRUE(has(odd(4, Code::skipped), "rank 1: found the step void, but rank 0 did not"));
}

// A scheme of a user that sums in place and decodes on every rank: each finds the sum in its own
// memory.
class InPlace final : public Compressor {
 public:
  explicit InPlace(std::vector<float>& sums) : sums_(sums) {}
  Leg leg(std::uint64_t, int) const override { return {Reduction::sum, DType::f32, 12, true}; }
  std::size_t encode(const Turn&, TensorView, Bytes out) override { return out.size(); }
  Status decode(const Turn&, const Inbox&, TensorView average) override {
    sums_.push_back(average.f32()[2]);
    for (float& value : average.f32()) value = 0.25f * value;
    return {};
  }
  void undo(const Turn&) override {}
  void visit_state(StateVisitor&) override {}

 private:
  std::vector<float>& sums_;
};

TEST(VirtualTold, SumsInPlaceReachRanksThatDecode) {
  std::vector<float> sums;
  VirtualExchange exchange(4, {Bucket::single(0, "a", 3)}, [&](const Site&) {
    std::vector<std::unique_ptr<Compressor>> all;
    all.push_back(std::make_unique<InPlace>(sums));
    return all;
  });
  Model models = {{1, 2, 3}, {4, 5, 6}, {7, 8, 9}, {10, 11, 12}};
  for (int worker = 0; worker < 4; ++worker)
    exchange.submit(worker, 0, models[static_cast<std::size_t>(worker)]);
  exchange.finish();
  EXPECT_EQ(sums, std::vector<float>(4, 30));
  EXPECT_EQ(models[0], (std::vector<float>{5.5f, 6.5f, 7.5f}));
}

TEST(VirtualTold, NoBucketsAtAll) {
  VirtualExchange exchange(2, {}, Config::parse("dense"));
  EXPECT_EQ(exchange.finish().step, 0u);
  EXPECT_EQ(exchange.finish().step, 1u);
}

}  // namespace thinwire::virtual_told
