// failed_step_test.cc: a step that ends in an error: memory is what it was before plus the
// gradient, it can be saved, and no error during error handling ends the process.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <mutex>
#include <thread>

#include "tests/exchange/forwarding.h"
#include "tests/laws.h"

namespace thinwire {
namespace failed_step {

using namespace testing;

// While `damage` is set, every gather and every piece that arrives has a flipped bit.
class BadLine final : public Forwarding {
 public:
  using Forwarding::Forwarding;
  bool damage = false;

  Pending all_gather(ConstBytes mine, std::size_t slot_bytes, Bytes slots,
                     std::span<std::size_t> sizes, Stream stream) override {
    Forwarding::all_gather(mine, slot_bytes, slots, sizes, stream).wait();
    flip(slots, slot_bytes, sizes);
    return {};
  }
  Pending all_to_all(ConstBytes mine, std::span<const std::size_t> mine_sizes,
                     std::size_t slot_bytes, Bytes slots, std::span<std::size_t> sizes,
                     Stream stream) override {
    Forwarding::all_to_all(mine, mine_sizes, slot_bytes, slots, sizes, stream).wait();
    flip(slots, slot_bytes, sizes);
    return {};
  }

 private:
  void flip(Bytes slots, std::size_t slot_bytes, std::span<const std::size_t> sizes) const {
    for (std::size_t rank = 0; damage && rank < sizes.size(); ++rank) {
      if (sizes[rank] > 0) slots[rank * slot_bytes + sizes[rank] - 1] ^= std::byte{1};
    }
  }
};

static const std::vector<Bucket> two_buckets = {
    Bucket{0, {{"a", 0, 301, {43, 7}}, {"bias", 301, 9, {}}}}, Bucket{1, {{"c", 0, 77, {11, 7}}}}};

static void load(Exchange& exchange, const State& state) {
  StateLoader loader(state);
  exchange.visit_state(loader);
}

static void add(std::vector<std::vector<double>>& sums, const Model& model) {
  sums.resize(model.size());
  for (std::size_t b = 0; b < model.size(); ++b) {
    sums[b].resize(model[b].size());
    for (std::size_t i = 0; i < model[b].size(); ++i) sums[b][i] += model[b][i];
  }
}

// What this rank keeps of a bucket, with an owner's share once per worker.
static std::vector<float> kept_of(const State& state, const Bucket& bucket, int workers) {
  std::vector<float> kept(bucket.elements());
  for (const Parameter& parameter : bucket.parameters) {
    const std::span<float> part = std::span(kept).subspan(parameter.offset, parameter.count);
    subtract_owned(state, parameter, workers, part);
    for (float& value : part) value = -value;
    const std::vector<float>& own = state.at(parameter.name + "/v").values;
    for (std::size_t i = 0; i < part.size(); ++i) part[i] += own[i];
  }
  return kept;
}

// Two good steps, one whose frames arrive damaged everywhere, its state saved and loaded into a new
// exchange, two more steps: gradients in = averages out + kept.
static void conserve_over_failure(Group& group, const Config& config, const ExchangeKind& kind) {
  std::vector<std::vector<double>> in, out;
  BadLine line(group);
  const auto step = [&](Exchange& exchange, std::uint64_t number) {
    Model model = model_gradient(two_buckets, Shape::normal, seed_of(group, number));
    add(in, model);
    take_step(exchange, model, 0);
    add(out, model);
  };
  State saved;
  {
    Exchange exchange(line, two_buckets, config, {.kind = kind});
    for (std::uint64_t number = 0; number < 2; ++number) step(exchange, number);
    line.damage = true;
    EXPECT_NE(error_of([&] { step(exchange, 2); }), "") << config.str();
    saved = state_of(exchange);
    line.damage = false;
  }
  Exchange exchange(group, two_buckets, config, {.kind = kind});
  load(exchange, saved);
  for (std::uint64_t number = 2; number < 4; ++number) step(exchange, number + 100);
  const State state = state_of(exchange);
  for (std::size_t b = 0; b < two_buckets.size(); ++b) {
    std::vector<float> moved = kept_of(state, two_buckets[b], group.size());
    for (std::size_t i = 0; i < moved.size(); ++i)
      moved[i] = static_cast<float>(in[b][i] - static_cast<double>(moved[i]));
    group.all_reduce(std::as_writable_bytes(std::span(moved)), DType::f32, ReduceOp::sum, {})
        .wait();
    for (std::size_t i = 0; i < moved.size(); ++i)
      ASSERT_NEAR(moved[i], group.size() * out[b][i], 1e-4) << config.str() << " " << b << " " << i;
  }
}

TEST(FailedStep, LosesNothingAndCanBeSaved) {
  for (const Scheme* scheme : schemes()) {
    Config config = with(with(Config{scheme->name, {}}, "density", "0.1"), "momentum", "0");
    config = with(config, "memory", "residual");
    if (!keeps_residual(config) || scheme->reducible || scheme->name == "powersgd") continue;
    for (const char* kind : {"auto", "split"}) {
      run_local(3, [&](Group& group) {
        conserve_over_failure(group, config, ExchangeKind::parse(kind));
      });
    }
  }
}

TEST(FailedStep, OfALostRankLosesNothing) {
  for (const char* text :
       {"topk:density=0.1,values=f32", "onebit:memory=residual", "csc:momentum=0,density=0.1"}) {
    const Config config = Config::parse(text);
    const std::string lost = error_of([&] {
      run_local(3, [&](Group& group) {
        Exchange exchange(group, two_buckets, config);
        Model model = model_gradient(two_buckets, Shape::normal, seed_of(group, 0));
        take_step(exchange, model, 0);
        if (group.rank() == 2) throw Error("lost");
        const State before = state_of(exchange);
        model = model_gradient(two_buckets, Shape::normal, seed_of(group, 1));
        const Model given = model;
        EXPECT_NE(error_of([&] { take_step(exchange, model, 0); }), "");
        const State state = state_of(exchange);
        for (std::size_t b = 0; b < given.size(); ++b) {
          const std::vector<float> had = kept_of(before, two_buckets[b], group.size());
          const std::vector<float> kept = kept_of(state, two_buckets[b], group.size());
          // Either its turn had not come and the caller still has it, or it was taken in.
          if (kept == had && model[b] == given[b]) continue;
          for (std::size_t i = 0; i < kept.size(); ++i)
            EXPECT_NEAR(kept[i] - had[i], given[b][i], 1e-5) << text << " bucket " << b;
        }
      });
    });
    EXPECT_EQ(lost, "lost") << text;
  }
}

// Wrong memory is rejected before any of the step is taken in. What the previous step sent must not
// come back.
TEST(FailedStep, OfWrongMemoryLeavesMemoryAsItWas) {
  for (const char* text :
       {"topk:density=0.1", "dgc", "onebit", "csc", "randomk", "powersgd", "threshold", "signum"}) {
    run_local(1, [&](Group& group) {
      const std::vector<Bucket> bucket = {Bucket::single(0, "w", 300)};
      Exchange exchange(group, bucket, Config::parse(text));
      Model model = model_gradient(bucket, Shape::normal, 1);
      take_step(exchange, model, 0);
      const State before = state_of(exchange);
      exchange.submit(0, TensorView(model[0].data(), 300, DType::bf16, {}));
      EXPECT_NE(error_of([&] { exchange.finish(); }).find("expected f32"), std::string::npos);
      EXPECT_EQ(serialize(state_of(exchange)), serialize(before)) << text;
    });
  }
}

// Reports the first cause, not the absence of a bucket that is no longer needed.
TEST(FailedStep, IsToldBeforeAllBucketsAreThere) {
  run_local(1, [](Group& group) {
    Exchange exchange(group, two_buckets, Config::parse("dgc"));
    Model model = model_gradient(two_buckets, Shape::normal, 1);
    exchange.submit(0, TensorView(model[0].data(), model[0].size(), DType::bf16, {}));
    std::string text;
    for (int look = 0; look < 1000 && text.find("expected f32") == text.npos; ++look) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      text = error_of([&] { exchange.finish(); });
    }
    EXPECT_NE(text.find("expected f32"), text.npos) << text;
  });
}

// A compressor whose undo() throws.
class Stubborn final : public Compressor {
 public:
  explicit Stubborn(Code code) : code_(code) {}
  Leg leg(std::uint64_t, int) const override { return {Reduction::gather, DType::f32, 4}; }
  std::size_t encode(const Turn&, TensorView, Bytes) override { return 4; }
  Status decode(const Turn&, const Inbox&, TensorView) override { return {code_, "first cause"}; }
  void undo(const Turn&) override { fail("second cause"); }
  void visit_state(StateVisitor&) override {}

 private:
  Code code_;
};

TEST(FailedStep, OfUndoIsAnErrorOfTheStep) {
  for (const Code code : {Code::bad_value, Code::skipped}) {
    run_local(2, [&](Group& group) {
      const std::vector<Bucket> bucket = {Bucket::single(0, "w", 1)};
      std::vector<std::unique_ptr<Compressor>> stubborn;
      stubborn.push_back(std::make_unique<Stubborn>(code));
      Exchange exchange(group, bucket, std::move(stubborn), "stubborn");
      Model model = model_gradient(bucket, Shape::normal, 1);
      const std::string text = error_of([&] { take_step(exchange, model, 0); });
      if (code == Code::bad_value) {
        EXPECT_NE(text.find("first cause"), std::string::npos) << text;
      }
      EXPECT_NE(text.find("second cause"), std::string::npos) << text;
      EXPECT_NE(text.find("rank " + std::to_string(group.rank())), std::string::npos) << text;
      // Its memory is wrong, so it must not be saved.
      EXPECT_EQ(error_of([&] { state_of(exchange); }), text);
    });
  }
}

// Numbers that are valid as f64 but not as the f32 that they become.
TEST(FailedStep, OptionsThatVanishAsFloatsAreRefused) {
  const Bucket bucket = Bucket::single(0, "w", 64);
  for (const char* text :
       {"threshold:tau=1e-46", "threshold:tau=1e-40", "dgc:momentum=0.99999999999",
        "csc:momentum=0.99999999999", "signum:momentum=0.99999999999",
        "onebit:memory=momentum,momentum=0.99999999999",
        "randomk:memory=momentum,momentum=0.99999999999", "dgc:clip=1e-60",
        "terngrad:clip=1e-60"}) {
    const std::string error = error_of([&] {
      make_compressor(Config::parse(text), bucket, {0, 1});
    });
    EXPECT_NE(error.find("option '"), std::string::npos) << text << ": " << error;
  }
  for (const char* text : {"threshold:tau=0", "threshold:tau=1e-30", "dgc:momentum=0.999999"})
    EXPECT_EQ(error_of([&] { make_compressor(Config::parse(text), bucket, {0, 1}); }), "") << text;
}

}  // namespace failed_step
}  // namespace thinwire
