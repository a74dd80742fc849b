// stream_exchange_test.cc: the exchange of device memory, on the CPU: the same bookkeeping,
// carriers and errors, with compressors that do at once what a device does later. tests/cuda has
// the rest.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/exchange/stream_exchange.h"

#include <gtest/gtest.h>

#include <cmath>
#include <thread>

#include "tests/exchange/stream_laws.h"
#include "thinwire/compress/registry.h"
#include "thinwire/exchange/as_device.h"
#include "thinwire/exchange/striped.h"
#include "thinwire/exchange/through_host.h"

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
  void all_to_all(ConstBytes mine, Bytes slots, Stream stream) override {
    const auto ranks = static_cast<std::size_t>(size());
    const std::vector<std::size_t> pieces(ranks, mine.size() / ranks);
    std::vector<std::size_t> sizes(ranks);
    group_.all_to_all(mine, pieces, mine.size() / ranks, slots, sizes, stream).wait();
  }

 private:
  Group& group_;
};

class Streams : public ::testing::TestWithParam<Config> {
 protected:
  const Config config_ = GetParam();
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

// Stripes of their own compressors, each under the contract of a device.
TEST_P(Streams, InStripesHaveTheBitsOfAnExchange) {
  for (const ExchangeKind& kind : striped_kinds(config_)) {
    if (sanitized && kind.second) break;
    run_local(3, [&](Group& group) {
      AtOnce data(group);
      law_same_as_exchange(group, config_, {group}, {.kind = kind});
      law_same_as_exchange(group, config_, {group, &data, {}}, {.kind = kind});
      law_state_moves(group, config_, {group}, {.kind = kind});
    });
  }
}

TEST_P(Streams, FusedHaveTheBitsOfAnExchange) {
  for (const std::size_t bytes : {100u, 9000u, 1u << 20}) {
    run_local(2, [&](Group& group) {
      AtOnce data(group);
      law_same_as_exchange(group, config_, {group}, {.fuse_bytes = bytes});
      law_same_as_exchange(group, config_, {group, &data, {}}, {.fuse_bytes = bytes});
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Registry, Streams, ::testing::ValuesIn(stream_configs()), config_name);

// Law: with compressors that somebody has made, a step has the bits of an Exchange.
template <typename Make>
void expect_same_with(Group& group, const Config& config, const ExchangeOptions& options,
                      const Make& make) {
  const auto buckets = awkward_buckets();
  std::vector<std::unique_ptr<Compressor>> compressors;
  for (const Bucket& bucket : buckets)
    compressors.push_back(make(bucket, Site{group.rank(), group.size()}));
  Exchange plain(group, buckets, config, options);
  StreamExchange streams({group}, buckets, std::move(compressors), "stand-in");
  for (std::uint64_t step = 0; step < 8; ++step) {
    Model a = course_gradient(group, buckets, step), b = a;
    ASSERT_EQ(take_step(plain, a, 0).skipped, take_step(streams, b, step, {}).skipped);
    for (std::size_t i = 0; i < a.size(); ++i)
      ASSERT_TRUE(same_bits(a[i], b[i])) << config.str() << " " << step;
  }
  ASSERT_EQ(bytes_of_state(streams), serialize(state_of(plain)));
}

// A striped compressor of the CPU as a whole: lengths of pieces become words in memory.
TEST(StreamExchange, AStandInScattersToo) {
  const Config config = Config::parse("dgc:density=0.02");
  const ExchangeKind kind = ExchangeKind::parse("split");
  run_local(3, [&](Group& group) {
    expect_same_with(group, config, {.kind = kind}, [&](const Bucket& bucket, const Site& site) {
      return as_device(std::make_unique<StripedCompressor>(config, kind, bucket, site), bucket.id);
    });
  });
}

// Schemes that work on the host while gradients are on a device: here both are the same.
TEST(StreamExchange, ThroughTheHostHasTheBitsOfAnExchange) {
  for (const char* text : {"atomo", "qsgd:form=coded,memory=residual", "dense", "fp16",
                           "csc:density=0.1", "dgc:density=0.02,clip=0.5"}) {
    const Config config = Config::parse(text);
    run_local(2, [&](Group& group) {
      expect_same_with(group, config, {}, [&](const Bucket& bucket, const Site& site) {
        return through_host(make_compressor(config, bucket, site), bucket, site.device);
      });
    });
  }
}

// Records the kinds of collectives as they are issued.
class Records final : public Forwarding {
 public:
  explicit Records(Group& inner) : Forwarding(inner) {}
  Pending all_reduce(Bytes data, DType dtype, ReduceOp op, Stream stream) override {
    log.push_back(data.size());
    return Forwarding::all_reduce(data, dtype, op, stream);
  }
  std::vector<std::size_t> log;
};

// Second rounds leave in an order that follows from bucket numbers: over streams as in an Exchange,
// over the host after all first rounds. Ranks that submit in other orders do not change it.
TEST(StreamExchange, SecondRoundsLeaveInOneOrder) {
  std::vector<Bucket> buckets;
  for (std::uint16_t b = 0; b < 6; ++b)
    buckets.push_back(Bucket::single(b, "w" + std::to_string(b), 6400u * (b + 1u)));
  const auto order = [&](bool streams) {
    std::vector<std::vector<std::size_t>> logs(3);
    run_local(3, [&](Group& group) {
      Records records(group);
      AtOnce data(records);
      StreamExchange exchange({streams ? group : records, streams ? &data : nullptr, {}}, buckets,
                              Config::parse("csc"));
      for (std::uint64_t step = 0; step < 3; ++step) {
        Model model = model_gradient(buckets, Shape::normal, seed_of(group, step));
        records.log.clear();
        take_step(exchange, model, seed_of(group, step), {});
      }
      logs[static_cast<std::size_t>(group.rank())] = records.log;
    });
    EXPECT_EQ(logs[0], logs[1]);
    EXPECT_EQ(logs[0], logs[2]);
    return logs[0];
  };
  std::vector<std::size_t> norms, chunks;
  for (const Bucket& bucket : buckets) {
    const auto compressor = make_compressor(Config::parse("csc"), bucket, {0, 3});
    norms.push_back(compressor->leg(0, 0).bytes);
    chunks.push_back(compressor->leg(0, 1).bytes);
  }
  EXPECT_EQ(order(true), (std::vector<std::size_t>{norms[0], norms[1], norms[2], chunks[0],
                                                   norms[3], chunks[1], norms[4], chunks[2],
                                                   norms[5], chunks[3], chunks[4], chunks[5]}));
  std::vector<std::size_t> host = norms;
  host.insert(host.end(), chunks.begin(), chunks.end());
  EXPECT_EQ(order(false), host);
}

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

TEST(StreamExchange, RefusesWhatDoesNotFit) {
  run_local(1, [](Group& group) {
    const std::vector<Bucket> one = {Bucket{0, {{"w", 0, 4096, {64, 64}}}}};
    const auto error = [&](const char* scheme, const char* kind) {
      return error_of([&] {
        StreamExchange(StreamLink{group}, one, Config::parse(scheme),
                       {.kind = ExchangeKind::parse(kind)});
      });
    };
    EXPECT_NE(error("powersgd", "split").find("travels by all-reduce"), std::string::npos);
    EXPECT_NE(error("dgc", "server:1").find("at least 2 ranks"), std::string::npos);
  });
}

// A scheme that has no copy of its memory on a device cannot compress averages there.
TEST(StreamExchange, ASecondSchemeMustBeAbleToGoBack) {
  const auto compressor = make_compressor(Config::parse("onebit"), Bucket::single(0, "w", 8), {});
  for (const auto call : {&Compressor::keep, &Compressor::restore})
    EXPECT_NE(error_of([&] { ((*compressor).*call)({}); }).find("second="), std::string::npos);
}

// Damage in the first round of stripes names its sender and the bucket, not the stripe.
TEST(StreamExchange, DamageInStripesNamesTheBucket) {
  class Flips final : public Forwarding {
   public:
    explicit Flips(Group& inner) : Forwarding(inner) {}
    Pending all_to_all(ConstBytes mine, std::span<const std::size_t> pieces, std::size_t slot_bytes,
                       Bytes slots, std::span<std::size_t> sizes, Stream stream) override {
      Forwarding::all_to_all(mine, pieces, slot_bytes, slots, sizes, stream).wait();
      if (rank() == 1 && ++calls_ == 2) slots[2 * slot_bytes + 30] ^= std::byte{4};
      return {};
    }

   private:
    int calls_ = 0;
  };
  run_local(3, [](Group& group) {
    Flips flips(group);
    const std::vector<Bucket> buckets = {Bucket::single(0, "a", 9000),
                                         Bucket::single(1, "b", 9000)};
    StreamExchange exchange({flips}, buckets, Config::parse("dgc:density=0.01,momentum=0"),
                            {.kind = ExchangeKind::parse("split")});
    const Model gradients = model_gradient(buckets, Shape::normal, seed_of(group, 0));
    Model model = gradients;
    const std::string text = error_of([&] { take_step(exchange, model, 0, {}); });
    if (group.rank() == 1) {
      EXPECT_EQ(text.find("rank 1, step 0, bucket 1, bytes from rank 2: frame's checksum"), 0u)
          << text;
    } else {
      EXPECT_EQ(text, "");  // they skip the step
      EXPECT_TRUE(exchange.outcome().skipped);
    }
    State state;
    StateSaver saver(state);
    exchange.visit_state(saver);
    for (std::size_t i = 0; i < gradients[0].size(); ++i)
      ASSERT_NEAR(state.at("a/v").values[i], gradients[0][i], 1e-5) << i;
    for (const auto& [name, entry] : state) {
      if (!name.ends_with("/owner/v")) continue;
      for (const float value : entry.values) ASSERT_EQ(value, 0.0f) << name;
    }
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
