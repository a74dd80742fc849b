// stream_exchange_test.cc: the exchange of device memory, on the CPU: the same bookkeeping,
// carriers and errors, with compressors that do at once what a device does later. tests/cuda has
// the rest.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/exchange/stream_exchange.h"

#include <gtest/gtest.h>

#include <cmath>
#include <thread>

#include "tests/exchange/stream_laws.h"
#include "thinwire/exchange/as_device.h"

namespace thinwire {
namespace {

using namespace testing;

// Collectives of host memory that are done when the call returns.
class AtOnce final : public StreamGroup {
 public:
  explicit AtOnce(Group& group) : group_(group) {}

  int rank() const override { return group_.rank(); }
  int size() const override { return group_.size(); }
  std::string name() const override { return "at once"; }
  Traffic traffic() const override { return group_.traffic(); }

  void all_reduce(Bytes data, DType dtype, ReduceOp op, Stream stream) override {
    group_.all_reduce(data, dtype, op, stream).wait();
  }
  void all_gather(ConstBytes mine, Bytes slots, Stream stream) override {
    std::vector<std::size_t> sizes(static_cast<std::size_t>(size()));
    group_.all_gather(mine, mine.size(), slots, sizes, stream).wait();
  }

 private:
  Group& group_;
};

class Streams : public ::testing::TestWithParam<const char*> {
 protected:
  const Config config_ = Config::parse(GetParam());
};

TEST_P(Streams, OverTheHostHaveTheBitsOfAnExchange) {
  for (const int ranks : {2, 4})
    run_local(ranks, [&](Group& group) { law_same_as_exchange(group, config_, {group}); });
}

TEST_P(Streams, OverAStreamGroupHaveTheBitsOfAnExchange) {
  run_local(2, [&](Group& group) {
    AtOnce data(group);
    law_same_as_exchange(group, config_, {group, &data, {}});
  });
  run_local(1, [&](Group& group) {
    const auto data = make_solo_stream_group({});
    law_same_as_exchange(group, config_, {group, data.get(), {}});
  });
}

TEST_P(Streams, TakeUpTheStateOfAnExchange) {
  run_local(2, [&](Group& group) { law_state_moves(group, config_, {group}); });
}

INSTANTIATE_TEST_SUITE_P(, Streams, ::testing::ValuesIn(stream_schemes),
                         [](const auto& info) { return test_name(info.param); });

TEST(StreamExchange, DamageNamesTheRankAndLosesNothing) {
  run_local(3, [](Group& group) { law_damage(group, {}); });
}

TEST(StreamExchange, FillsASkippedStepAsAsked) {
  run_local(2, [](Group& group) {
    const auto buckets = awkward_buckets();
    StreamExchange exchange({group}, buckets, Config::parse("dgc:density=0.02"));
    Model model = course_gradient(group, buckets, 3);
    EXPECT_TRUE(take_step(exchange, model, 0, {}, std::nanf("")).skipped);
    for (const auto& bucket : model)
      for (const float value : bucket) ASSERT_TRUE(std::isnan(value));
  });
}

TEST(StreamExchange, TellsWhatIsWrongWithACall) {
  run_local(1, [](Group& group) {
    const auto buckets = awkward_buckets();
    StreamExchange exchange({group}, buckets, Config::parse("topk:density=0.02"));
    EXPECT_FALSE(exchange.result().has_value());
    const Model model = model_gradient(buckets, Shape::normal, 1);
    const OnDeviceModel on_device(model, {});
    const auto error = [&](std::size_t bucket, TensorView view) {
      return error_of([&] { exchange.submit(static_cast<std::uint16_t>(bucket), view, {}); });
    };
    const auto contains = [](const std::string& text, const char* part) {
      return text.find(part) != std::string::npos;
    };
    EXPECT_TRUE(contains(error(9, on_device.view(0)), "there are 4 buckets"));
    EXPECT_TRUE(contains(error(1, on_device.view(0)), "expected 4114 elements, got 1"));
    TensorView elsewhere = on_device.view(0);
    elsewhere.device = {Device::Kind::cuda, 0};
    EXPECT_TRUE(contains(error(0, elsewhere), "not on the device"));
    EXPECT_EQ(error(1, on_device.view(1)), "");
    EXPECT_TRUE(contains(error(1, on_device.view(1)), "submitted twice"));
    EXPECT_TRUE(contains(error_of([&] { exchange.finish({}); }), "bucket 0: not submitted"));
    State state;
    StateSaver saver(state);
    EXPECT_TRUE(contains(error_of([&] { exchange.visit_state(saver); }), "inside a step"));
    for (const std::size_t bucket : {0u, 2u, 3u})
      EXPECT_EQ(error(bucket, on_device.view(bucket)), "");
    exchange.finish({});
    ASSERT_TRUE(exchange.result().has_value());
    EXPECT_FALSE(exchange.outcome().skipped);
  });
}

TEST(StreamExchange, RefusesWhatDoesNotRunOnADevice) {
  run_local(1, [](Group& group) {
    const std::vector<Bucket> one = {Bucket{0, {{"w", 0, 4096, {64, 64}}}}};
    const auto error = [&](const char* scheme, const ExchangeOptions& options) {
      return error_of(
          [&] { StreamExchange(StreamLink{group}, one, Config::parse(scheme), options); });
    };
    EXPECT_NE(error("powersgd", {}).find("several rounds does not run on CUDA"), std::string::npos);
    EXPECT_NE(error("dense", {.fuse_bytes = 10}).find("fused sums"), std::string::npos);
    EXPECT_NE(error("dgc", {.kind = ExchangeKind::parse("split")}).find("'split' does not run"),
              std::string::npos);
  });
}

TEST(StreamExchange, RanksAtOddsAreNamed) {
  run_local(2, [](Group& group) {
    const std::vector<Bucket> one = {Bucket::single(0, "w", 100)};
    const char* const scheme = group.rank() == 0 ? "topk" : "dgc";
    const std::string text =
        error_of([&] { StreamExchange(StreamLink{group}, one, Config::parse(scheme)); });
    EXPECT_NE(text.find("rank 1 was set up otherwise"), std::string::npos) << text;
  });
  run_local(2, [](Group& group) {
    const std::vector<Bucket> one = {Bucket::single(0, "w", 100)};
    StreamExchange exchange({group}, one, Config::parse("topk"));
    State state;
    StateSaver saver(state);
    exchange.visit_state(saver);
    state["exchange/step"].number = 5 + group.rank();
    StateLoader loader(state);
    exchange.visit_state(loader);
    Model model = model_gradient(one, Shape::normal, 1);
    const std::string text = error_of([&] { take_step(exchange, model, 0, {}); });
    EXPECT_NE(text.find("rank 0 begins at step 5, rank 1 at step 6"), std::string::npos) << text;
  });
}

// The others get an error that names it, and their gradients are in their memory.
TEST(StreamExchange, ARankThatLeavesIsNamedAndNothingIsLost) {
  const std::vector<Bucket> one = {Bucket::single(0, "w", 300)};
  const std::string thrown = error_of([&] {
    run_local(2, [&](Group& group) {
      StreamExchange exchange({group}, one, Config::parse("dgc:density=0.01,momentum=0"));
      if (group.rank() == 1) {
        Model model = model_gradient(one, Shape::normal, 1);
        const OnDeviceModel on_device(model, {});
        take_step(exchange, model, 0, {});
        return;
      }
      Model model = model_gradient(one, Shape::normal, 2);
      take_step(exchange, model, 0, {});
      State before, after;
      StateSaver save_before(before), save_after(after);
      exchange.visit_state(save_before);
      Model second = model_gradient(one, Shape::normal, 3);
      const Model gradient = second;
      const std::string text = error_of([&] { take_step(exchange, second, 0, {}); });
      EXPECT_NE(text.find("rank 1"), std::string::npos) << text;
      exchange.visit_state(save_after);
      for (std::size_t i = 0; i < 300; ++i)
        ASSERT_NEAR(after["w/v"].values[i], before["w/v"].values[i] + gradient[0][i], 1e-5);
      EXPECT_EQ(error_of([&] { exchange.outcome(); }), text);
    });
  });
  EXPECT_EQ(thrown, "");
}

}  // namespace
}  // namespace thinwire
