// edges_test.cc: the last call that is taken and the first that is refused, the words of errors,
// what a report counts, and what overlaps.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <set>
#include <thread>

#include "tests/exchange/forwarding.h"
#include "tests/exchange/lazy.h"
#include "tests/laws.h"
#include "thinwire/exchange/agreement.h"
#include "thinwire/exchange/fuse.h"
#include "thinwire/exchange/replicas.h"
#include "thinwire/kernels/limit.h"
#include "thinwire/wire/frame.h"

namespace thinwire::edges {

using namespace testing;

static const std::vector<Bucket> three = {Bucket::single(0, "a", 4), Bucket::single(1, "b", 4),
                                          Bucket::single(2, "c", 4)};

static bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// A scheme that does as it is told: one byte per rank, and decode() ends with `status`.
class Puppet : public Compressor {
 public:
  explicit Puppet(Status status = {}, int rounds = 1) : status_(status), rounds_(rounds) {}

  int rounds() const override { return rounds_; }
  Leg leg(std::uint64_t, int) const override { return {Reduction::gather, DType::f32, 1}; }
  std::size_t encode(const Turn&, TensorView, Bytes) override { return 1; }
  Status decode(const Turn& turn, const Inbox&, TensorView) override {
    return turn.round + 1 == rounds_ ? status_ : Status{};
  }
  void undo(const Turn&) override {}
  void visit_state(StateVisitor&) override {}

 private:
  Status status_;
  int rounds_;
};

template <typename Kind, typename... Settings>
static std::vector<std::unique_ptr<Compressor>> some(std::size_t count, Settings... settings) {
  std::vector<std::unique_ptr<Compressor>> compressors;
  for (std::size_t b = 0; b < count; ++b)
    compressors.push_back(std::make_unique<Kind>(settings...));
  return compressors;
}

// ---- what is refused ----

TEST(ExchangeEdges, ACheckpointCountsStepsUpToTwoToThe53) {
  run_local(1, [](Group& group) {
    Exchange exchange(group, three, Config::parse("randomk"));
    const auto load = [&](double step) {
      const State state = {{"exchange/step", {Share::replicated, {}, step}}};
      StateLoader loader(state);
      return error_of([&] { exchange.visit_state(loader); });
    };
    EXPECT_EQ(load(0), "");
    EXPECT_EQ(load(0x1p53), "");
    EXPECT_TRUE(has(load(0x1p53 + 2), "expected a number of steps, the checkpoint has 9.007"));
  });
}

TEST(ExchangeEdges, TheFirstBucketBeyondTheLastIsRefused) {
  run_local(1, [](Group& group) {
    std::vector<float> values(4);
    Exchange exchange(group, three, Config::parse("dense"));
    EXPECT_EQ(error_of([&] { exchange.submit(3, std::span(values)); }),
              "rank 0, step 0, bucket 3: there are 3 buckets, numbered from 0");
  });
}

TEST(ExchangeEdges, BucketsWithHolesAreRefused) {
  run_local(1, [](Group& group) {
    const std::vector<Bucket> hole = {Bucket{0, {{"a", 0, 4, {}}, {"b", 5, 4, {}}}}};
    const std::string text = error_of([&] { Exchange(group, hole, some<Puppet>(1), "puppet"); });
    EXPECT_TRUE(has(text, "parameter 'b': expected offset 4, got 5")) << text;
  });
}

TEST(ExchangeEdges, AnySchemeThatDoesNotFitIsRefused) {
  run_local(2, [](Group& group) {
    const std::vector<Config> configs = {Config::parse("topk"), Config::parse("dense"),
                                         Config::parse("topk")};
    const std::string text =
        error_of([&] { Exchange(group, three, configs, {.kind = ExchangeKind::parse("split")}); });
    EXPECT_TRUE(has(text, "scheme 'dense' travels by all-reduce")) << text;
  });
}

// The norm of all buckets is the first to read the memory: of a device, it would crash.
TEST(ExchangeEdges, MemoryIsCheckedBeforeItsNormIsTaken) {
  run_local(1, [](Group& group) {
    Exchange exchange(group, {Bucket::single(0, "w", 5000)}, Config::parse("dgc:clip=1"));
    exchange.submit(0, TensorView(nullptr, 5000, DType::f32, {Device::Kind::cuda, 1}));
    EXPECT_TRUE(has(error_of([&] { exchange.finish(); }), "cuda:1"));
  });
}

// ---- the words of errors ----

// Equal neighbours once, with their number; one for all without.
TEST(ExchangeEdges, SchemesOfBucketsAreListedShortly) {
  const Config dense = Config::parse("dense"), half = Config::parse("fp16");
  const auto text = [&](const std::vector<Config>& usual, const std::vector<Config>& odd) {
    std::string heard;
    run_local(2, [&](Group& group) {
      const std::string found =
          error_of([&] { Exchange(group, three, group.rank() == 1 ? odd : usual); });
      if (group.rank() == 0) heard = found;
    });
    return heard;
  };
  const std::string alike = text({dense, dense, dense}, {dense, dense, half});
  EXPECT_TRUE(has(alike, "rank 0 has: 3 buckets, 12 elements, scheme dense; ")) << alike;
  EXPECT_TRUE(has(alike, "rank 1 has: 3 buckets, 12 elements, scheme dense x2 fp16 x1; ")) << alike;
  const std::string mixed = text({half, dense, half}, {half, dense, dense});
  EXPECT_TRUE(has(mixed, "scheme fp16 x1 dense x1 fp16 x1; ")) << mixed;
  EXPECT_TRUE(has(mixed, "scheme fp16 x1 dense x2; ")) << mixed;
}

TEST(ExchangeEdges, AFaultOfNoRankNamesNone) {
  run_local(1, [](Group& group) {
    Exchange exchange(group, three, some<Puppet>(3, Status{Code::bad_value, "odd"}), "puppet");
    Model model = model_gradient(three, Shape::normal, 1);
    EXPECT_EQ(error_of([&] { take_step(exchange, model, 0); }),
              "rank 0, step 0, bucket 0: odd; the step was not taken, restart from the last "
              "checkpoint");
  });
}

// What rank 0 sent arrives with a flipped bit.
class FromRankZero final : public Forwarding {
 public:
  using Forwarding::Forwarding;
  Pending all_gather(ConstBytes mine, std::size_t slot_bytes, Bytes slots,
                     std::span<std::size_t> sizes, Stream stream) override {
    Forwarding::all_gather(mine, slot_bytes, slots, sizes, stream).wait();
    if (gathers_++ > 0) slots[40] ^= std::byte{4};  // the first is the agreement on the set-up
    return {};
  }

 private:
  int gathers_ = 0;
};

TEST(ExchangeEdges, RankZeroIsNamedLikeAnyOther) {
  run_local(2, [](Group& group) {
    FromRankZero line(group);
    const std::vector<Bucket> one = {Bucket::single(0, "w", 5000)};
    Exchange exchange(line, one, Config::parse("topk:density=0.01"));
    Model model = model_gradient(one, Shape::normal, seed_of(group, 0));
    const std::string text = error_of([&] { take_step(exchange, model, 0); });
    EXPECT_TRUE(has(text, "step 0, bucket 0, bytes from rank 0: ")) << text;
  });
}

class Stubborn final : public Puppet {
 public:
  using Puppet::Puppet;
  void undo(const Turn&) override { fail("no"); }
};

TEST(ExchangeEdges, EveryBucketThatCannotBeTakenBackIsNamed) {
  const std::vector<Bucket> two = {three[0], three[1]};
  const std::string both =
      "rank 0, step 0, bucket 0: what was sent could not be put back: no; "
      "rank 0, step 0, bucket 1: what was sent could not be put back: no";
  const std::string end = "; the step was not taken, restart from the last checkpoint";
  const auto text = [&](Status status) {
    std::string heard;
    run_local(1, [&](Group& group) {
      Exchange exchange(group, two, some<Stubborn>(2, status), "stubborn");
      Model model = model_gradient(two, Shape::normal, 1);
      heard = error_of([&] { take_step(exchange, model, 0); });
    });
    return heard;
  };
  EXPECT_EQ(text({Code::bad_value, "odd"}),
            "rank 0, step 0, bucket 0: odd" + end + "; and " + both);
  EXPECT_EQ(text({Code::skipped, "void"}), both + end);
}

// It has found NaN and keeps it to itself: ranks would go apart.
class Silent final : public Puppet {
 public:
  std::optional<bool> sound() const override { return false; }
};

TEST(ExchangeEdges, AFindingThatIsNotToldIsAnError) {
  run_local(1, [](Group& group) {
    Exchange exchange(group, three, some<Silent>(3), "silent");
    Model model = model_gradient(three, Shape::normal, 1);
    const std::string text = error_of([&] { take_step(exchange, model, 0); });
    EXPECT_TRUE(has(text, "rank 0, step 0, bucket 0: a scheme found its gradient")) << text;
  });
}

class Foreign final : public Puppet {
 public:
  std::size_t encode(const Turn&, TensorView, Bytes) override { throw 7; }
};

TEST(ExchangeEdges, AForeignExceptionEndsTheStepToo) {
  run_local(1, [](Group& group) {
    Exchange exchange(group, three, some<Foreign>(3), "foreign");
    Model model = model_gradient(three, Shape::normal, 1);
    for (std::uint16_t b = 0; b < 3; ++b) {
      try {
        exchange.submit(b, std::span(model[b]));
      } catch (int) {
        break;  // the first has failed already
      }
    }
    EXPECT_THROW(exchange.finish(), int);
  });
}

// ---- what is counted and told ----

TEST(ExchangeEdges, ReportCountsWhatArrives) {
  run_local(4, [](Group& group) {
    Exchange exchange(group, {Bucket::single(0, "w", 5000)}, Config::parse("dense"));
    std::vector<float> values(5000);
    for (std::uint64_t step = 1; step < 3; ++step) {
      exchange.submit(0, std::span(values));
      exchange.finish();
      EXPECT_EQ(exchange.report().traffic.sent, step * 30000u);  // ring: 2 * 3/4
      EXPECT_EQ(exchange.report().traffic.received, step * 30000u);
      EXPECT_EQ(exchange.report().traffic.collectives, step);
    }
  });
}

// However many rounds there are.
TEST(ExchangeEdges, AGradientIsCountedOnce) {
  run_local(2, [](Group& group) {
    Exchange exchange(group, three, some<Puppet>(3, Status{}, 2), "puppet");
    Model model = model_gradient(three, Shape::normal, 1);
    take_step(exchange, model, 0);
    EXPECT_EQ(exchange.report().dense_bytes, 3u * 4 * sizeof(float));
    EXPECT_EQ(exchange.report().payload_bytes, 3u * 2);
    EXPECT_EQ(exchange.report().ratio(), 8);
  });
}

TEST(ExchangeEdges, FusedBucketsAreToldOneByOne) {
  run_local(2, [](Group& group) {
    Exchange exchange(group, three, Config::parse("fp16"), {.fuse_bytes = 1 << 20});
    std::string told;
    exchange.observe([&](const Stage& stage) {
      told += std::string(stage.name, 2) + std::to_string(stage.bucket) +
              std::to_string(stage.round) + " ";
    });
    Model model = model_gradient(three, Shape::normal, 1);
    take_step(exchange, model, 0);
    take_step(exchange, model, 0);
    EXPECT_EQ(told,
              "en00 en10 en20 ex00 ex10 ex20 de00 de10 de20 "
              "en01 en11 en21 ex01 ex11 ex21 de01 de11 de21 ");
  });
}

// ---- who needs whom ----

// Counts the collectives that are issued.
class Counting final : public Forwarding {
 public:
  using Forwarding::Forwarding;
  int reductions = 0;
  std::set<const void*> places;  // of their data

  Pending all_reduce(Bytes data, DType dtype, ReduceOp op, Stream stream) override {
    ++reductions;
    places.insert(data.data());
    return Forwarding::all_reduce(data, dtype, op, stream);
  }
};

TEST(SameStep, OfOneRankNeedsNoCollective) {
  run_local(1, [](Group& group) {
    Counting counting(group);
    check_same_step(counting, "step", 5);
    EXPECT_EQ(counting.reductions, 0);
  });
}

TEST(SameStep, NamesTheFirstRankThatDiffers) {
  run_local(4, [](Group& group) {
    const std::uint64_t steps[] = {3, 3, 8, 9};
    const std::string text =
        error_of([&] { check_same_step(group, "round", steps[group.rank()]); });
    EXPECT_TRUE(has(text, ": rank 0 begins at round 3, rank 2 at round 8; ")) << text;
  });
}

TEST(ExchangeEdges, ChecksWaitForTheirCollectives) {
  run_local(2, [](Group& group) {
    Lazy lazy(group);
    const bool odd = group.rank() == 1;
    std::vector<float> values(3, odd ? 1.0f : 2.0f);
    const std::vector<Replica> replicas = {{"w", std::as_bytes(std::span(values))}};
    EXPECT_TRUE(has(error_of([&] { check_replicas(lazy, replicas); }), "'w' of rank 1"));
    EXPECT_TRUE(has(error_of([&] { check_agreement(lazy, three, odd ? "s" : "t"); }), "scheme s"));
    EXPECT_TRUE(has(error_of([&] { check_same_step(lazy, "step", odd ? 4 : 5); }), "at step 4"));
    Exchange exchange(lazy, three, Config::parse("dense"));
    Model model(3, std::vector<float>(4, odd ? 1.0f : 2.0f));
    take_step(exchange, model, 0);
    for (const auto& bucket : model) EXPECT_EQ(bucket, std::vector<float>(4, 1.5f));
  });
}

// A collective that ends only when `free` is set; a fault is that it must be waited for.
class Held final : public Pending::Work {
 public:
  Held(std::atomic<bool>& free, std::atomic<bool>& fault) : free_(free), fault_(fault) {}
  void wait() override {
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (!free_ && std::chrono::steady_clock::now() < limit) std::this_thread::yield();
    if (!free_) fault_ = true;
  }
  bool done() override { return free_; }
  Cost cost() const override { return {}; }

 private:
  std::atomic<bool>&free_, &fault_;
};

class Holding final : public Forwarding {
 public:
  Holding(Group& inner, std::atomic<bool>& free) : Forwarding(inner), free_(free) {}
  std::atomic<bool> fault = false;

  Pending all_gather(ConstBytes mine, std::size_t slot_bytes, Bytes slots,
                     std::span<std::size_t> sizes, Stream stream) override {
    Forwarding::all_gather(mine, slot_bytes, slots, sizes, stream).wait();
    if (++gathers_ != 3) return {};  // the agreement, and the first bucket
    return Pending(std::make_unique<Held>(free_, fault));
  }

 private:
  std::atomic<bool>& free_;
  int gathers_ = 0;
};

// The second bucket's collective takes until the first is decoded.
TEST(ExchangeEdges, DecodesWhileCollectivesAreUnderWay) {
  for (const int rounds : {1, 2}) {
    run_local(1, [&](Group& group) {
      const std::vector<Bucket> two = {three[0], three[1]};
      std::atomic<bool> decoded = false;
      Holding holding(group, decoded);
      std::vector<std::unique_ptr<Compressor>> puppets = some<Puppet>(1);
      puppets.push_back(std::make_unique<Puppet>(Status{}, rounds));
      Exchange exchange(holding, two, std::move(puppets), "puppets");
      exchange.observe([&](const Stage& stage) {
        if (stage.bucket == 0 && std::string_view(stage.name) == "decode") decoded = true;
      });
      Model model = model_gradient(two, Shape::normal, 1);
      take_step(exchange, model, 0);
      EXPECT_FALSE(holding.fault) << rounds;
    });
  }
}

// ---- fused sums ----

TEST(Fuser, AParcelIsFullWhenItReachesTheThreshold) {
  const OwnStream host{Device{}};
  Fuser fuser(8, host);
  std::vector<std::byte> bytes(7);
  const Leg leg{Reduction::sum, DType::f32, 7};
  EXPECT_TRUE(fuser.takes(leg));
  EXPECT_FALSE(fuser.takes({Reduction::sum, DType::f32, 8}));
  EXPECT_FALSE(fuser.takes({Reduction::gather, DType::f32, 7}));
  EXPECT_EQ(fuser.add(0, 0, leg, bytes), nullptr);
  EXPECT_NE(fuser.add(1, 0, {Reduction::sum, DType::f32, 1}, Bytes(bytes).first(1)), nullptr);
  EXPECT_EQ(fuser.lowest_open(), -1);
}

TEST(Fuser, SumsAndMaximaTravelApart) {
  const OwnStream host{Device{}};
  Fuser fuser(100, host);
  std::vector<std::byte> bytes(4);
  EXPECT_EQ(fuser.add(0, 0, {Reduction::sum, DType::f32, 4}, bytes), nullptr);
  const Parcel* const sums = fuser.add(1, 0, {Reduction::max, DType::f32, 4}, bytes);
  ASSERT_NE(sums, nullptr);
  EXPECT_EQ(sums->leg.reduction, Reduction::sum);
  EXPECT_EQ(sums->riders.size(), 1u);
  EXPECT_EQ(fuser.close(0)->leg.reduction, Reduction::max);
}

// Else memory would grow with every step.
TEST(Fuse, ParcelsAreReusedFromStepToStep) {
  run_local(2, [](Group& group) {
    Counting counting(group);
    Exchange exchange(counting, three, Config::parse("fp16"), {.fuse_bytes = 1 << 20});
    Model model = model_gradient(three, Shape::normal, 1);
    take_step(exchange, model, 0);
    counting.places.clear();
    for (int step = 0; step < 5; ++step) take_step(exchange, model, 0);
    EXPECT_EQ(counting.places.size(), 1u);
  });
}

// ---- stripes ----

// The numbers of the buckets in all frames that are gathered.
class Reading final : public Forwarding {
 public:
  using Forwarding::Forwarding;
  std::vector<int> buckets;

  Pending all_gather(ConstBytes mine, std::size_t slot_bytes, Bytes slots,
                     std::span<std::size_t> sizes, Stream stream) override {
    FrameHeader header;
    if (read_header(mine, header).ok()) buckets.push_back(header.bucket);
    return Forwarding::all_gather(mine, slot_bytes, slots, sizes, stream);
  }
};

// So that a worker's frame is never taken for an owner's, nor their random draws alike.
TEST(Striped, FramesOfAveragesHaveOddNumbers) {
  run_local(2, [](Group& group) {
    Reading reading(group);
    const std::vector<Bucket> buckets = {Bucket::single(0, "w", 1000)};
    Exchange exchange(reading, buckets, Config::parse("topk:density=0.1"),
                      {.kind = ExchangeKind::parse("split")});
    Model model = model_gradient(buckets, Shape::normal, seed_of(group, 0));
    take_step(exchange, model, 0);
    EXPECT_EQ(reading.buckets, std::vector<int>{2 * group.rank() + 1});
  });
}

// Gradients within the limit that waited for each other: were their sum refused, it would be in
// every later step too.
TEST(Striped, AveragesBeyondTheLimitAreCutToIt) {
  for (const float sign : {1.0f, -1.0f}) {
    run_local(1, [&](Group& group) {
      Exchange exchange(group, {Bucket::single(0, "w", 64)},
                        Config::parse("topk:density=0.01,values=f32,select=exact"),
                        {.kind = ExchangeKind::parse("split")});
      std::vector<float> values(64);
      values[3] = sign * 0.75f * gradient_limit;
      values[5] = gradient_limit;
      for (int step = 0; step < 2; ++step) {
        exchange.submit(0, std::span(values));
        EXPECT_FALSE(exchange.finish().skipped) << step;
        if (step == 0) values.assign(64, 0.0f), values[3] = sign * 0.75f * gradient_limit;
      }
      EXPECT_EQ(values[3], sign * gradient_limit);
    });
  }
}

TEST(ExchangeKind, SecondForgetsMomentumAsTheSchemeSpellsIt) {
  const ExchangeKind split = ExchangeKind::parse("split");
  const auto second = [&](const char* text) { return second_of(split, Config::parse(text)).str(); };
  EXPECT_EQ(second("onebit:memory=momentum"), "onebit:memory=residual");
  EXPECT_EQ(second("onebit:memory=residual"), "onebit:memory=residual");
  EXPECT_EQ(second("dgc"), "dgc:momentum=0");
  EXPECT_EQ(second("topk:density=0.1"), "topk:density=0.1");
  EXPECT_EQ(second("dgc:clip=0,momentum=0"), "dgc:momentum=0");
}

TEST(ExchangeKind, AnExplicitZeroTurnsAnOptionOff) {
  const auto clash = [](const char* second) {
    const ExchangeKind kind = ExchangeKind::parse(std::string("split,second=") + second);
    return error_of([&] { check_fit(kind, Config::parse("topk")); });
  };
  EXPECT_EQ(clash("dgc:momentum=0,clip=0"), "");
  EXPECT_TRUE(has(clash("dgc:momentum=0,clip=0.5"), "clips gradients"));
  EXPECT_TRUE(has(clash("dgc:momentum=0.5"), "accumulates momentum"));
  EXPECT_EQ(clash("onebit:memory=residual"), "");
}

}  // namespace thinwire::edges
