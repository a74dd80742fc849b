// calls_test.cc: every scheme refuses memory that is not its bucket's, whichever call brings it,
// and gives every element its turn: the first, the last, those beside the borders of threads and
// tiles.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "tests/laws.h"
#include "thinwire/compress/threshold_codec.h"
#include "thinwire/core/parallel.h"

namespace thinwire::calls {

using namespace testing;

// One worker's step, round by round.
class Alone {
 public:
  Alone(const Config& config, const Bucket& bucket)
      : compressor(make_compressor(config, bucket, {0, 1})), name_(config.str()) {}

  // Nothing is written behind the message.
  void encode(const Turn& turn, TensorView gradient) {
    leg_ = compressor->leg(turn.step, turn.round);
    const std::byte canary{0xa5};
    out_.assign(leg_.bytes + 64, canary);
    const Bytes own{static_cast<std::byte*>(gradient.data), leg_.bytes};
    room_ = leg_.in_place ? own : Bytes(out_).first(leg_.bytes);
    size_ = compressor->encode(turn, gradient, room_);
    all += size_;
    EXPECT_LE(size_, leg_.bytes) << name_;
    EXPECT_TRUE(size_ == leg_.bytes || leg_.reduction == Reduction::gather) << name_;
    EXPECT_EQ(std::count(out_.end() - 64, out_.end(), canary), 64) << name_;
  }

  Status decode(const Turn& turn, TensorView average) {
    const std::size_t sizes[] = {size_};
    const bool slots = leg_.reduction == Reduction::gather;
    const Inbox inbox{room_, slots ? leg_.bytes : 0,
                      slots ? std::span<const std::size_t>(sizes) : std::span<const std::size_t>()};
    const Status status = compressor->decode(turn, inbox, average);
    EXPECT_TRUE(!status.ok() || inbox.culprit == -1) << name_;
    return status;
  }

  Status step(std::vector<float>& values) {
    Status status;
    const double squared = std::pow(norm(values), 2);
    for (int round = 0; status.ok() && round < compressor->rounds(); ++round) {
      const Turn turn{0, round, {}, squared};
      encode(turn, values);
      status = decode(turn, values);
    }
    return status;
  }

  std::unique_ptr<Compressor> compressor;
  std::size_t all = 0;  // bytes written

 private:
  std::string name_;
  Leg leg_;
  std::vector<std::byte> out_;
  Bytes room_;
  std::size_t size_ = 0;
};

// ---- memory that is not the bucket's ----

static void expect_refusals(const Config& config, const Bucket& bucket) {
  const std::size_t count = bucket.elements();
  const DType type = bucket.dtype, other = type == DType::f32 ? DType::bf16 : DType::f32;
  std::vector<float> memory(count + 1);
  const auto view = [&](std::size_t elements, DType dtype, Device device = {}) {
    return TensorView{memory.data(), elements, dtype, device};
  };
  const std::string size = "expected " + std::to_string(count) + " elements, got ";
  const std::pair<TensorView, std::string> wrong[] = {
      {view(count - 1, type), size + std::to_string(count - 1)},
      {view(count + 1, type), size + std::to_string(count + 1)},
      {view(count, other), text_of("expected ", name_of(type), " elements, got ", name_of(other))},
      {view(count, type, {Device::Kind::cuda, 2}), "got memory of cuda:2"},
  };
  const std::string place = text_of(config.str(), " in ", name_of(type), ": ");
  for (const auto& one : wrong) {
    const TensorView bad = one.first;  // clang 14 does not capture parts of a pair
    const std::string& what = one.second;
    Alone alone(config, bucket);
    EXPECT_TRUE(alone.compressor->sound().value_or(true)) << place;
    const std::string text = error_of([&] { alone.encode({}, bad); });
    EXPECT_NE(text.find(what), std::string::npos) << place << text;
    EXPECT_NE(text.find("bucket 7"), std::string::npos) << place << text;
    // These leave the check to encode(): the sum is in the gradient's own memory, or nearly so.
    if (config.scheme == "dense" || config.scheme == "fp16" || config.scheme == "bf16") continue;
    const int last = alone.compressor->rounds() - 1;
    for (int round = 0; round <= last; ++round) {
      alone.encode({0, round, {}, 0}, view(count, type));
      if (round == last) break;
      ASSERT_TRUE(alone.decode({0, round, {}, 0}, view(count, type)).ok()) << place;
    }
    const std::string late = error_of([&] { (void)alone.decode({0, last, {}, 0}, bad); });
    EXPECT_NE(late.find(what), std::string::npos) << place << late;
  }
}

TEST(Calls, OtherMemoryThanTheBucketsIsRefused) {
  for (const Config& config : law_configs()) {
    if (find_scheme(config.scheme).id > 127) continue;  // of another test
    for (const DType type : {DType::f32, DType::bf16})
      expect_refusals(config, {7, {{"w", 0, 600, {20, 30}}, {"b", 600, 11, {}}}, type});
  }
}

// Who takes a step back twice has taken it back, and who looks at the state changes nothing.
TEST(Calls, UndoingAndSavingTwiceIsDoingItOnce) {
  const Bucket bucket{0, {{"w", 0, 600, {20, 30}}, {"b", 600, 11, {}}}};
  for (const Config& config : law_configs()) {
    Alone alone(config, bucket);
    const auto state = [&] {
      State saved;
      StateSaver saver(saved);
      alone.compressor->visit_state(saver);
      return serialize(saved);
    };
    std::vector<float> values = gradient(Shape::normal, 611, 1);
    ASSERT_TRUE(alone.step(values).ok()) << config.str();
    const auto after = state();
    EXPECT_EQ(state(), after) << config.str();
    values = gradient(Shape::normal, 611, 2);
    ASSERT_TRUE(alone.step(values).ok()) << config.str();
    alone.compressor->undo({});
    const auto once = state();
    alone.compressor->undo({});
    EXPECT_EQ(state(), once) << config.str();
  }
}

// What a scheme says that a step takes, all rounds together.
TEST(Calls, StepsTakeTheBytesThatTheSchemeTells) {
  const Bucket bucket{0, {{"w", 0, 6000, {60, 100}}, {"n", 6000, 0, {}}, {"b", 6000, 11, {}}}};
  int told = 0;
  for (const Config& config : law_configs()) {
    const Scheme& scheme = find_scheme(config.scheme);
    if (scheme.bytes == nullptr) continue;
    const std::size_t bytes = scheme.bytes(Options(config, scheme.options), bucket);
    if (bytes == 0) continue;  // it depends on the data
    Alone alone(config, bucket);
    std::vector<float> values = gradient(Shape::normal, 6011, 1);
    ASSERT_TRUE(alone.step(values).ok()) << config.str();
    EXPECT_EQ(alone.all, bytes) << config.str();
    ++told;
  }
  EXPECT_GT(told, sanitized ? 5 : 20);
}

// A scheme of several rounds must have decoded a step before it encodes the next.
TEST(Calls, TellWhetherStepsTakeTurns) {
  const auto in_turn = [](const char* text) {
    const Bucket bucket{0, {{"w", 0, 6000, {60, 100}}}};
    return make_compressor(Config::parse(text), bucket, {0, 2})->in_turn();
  };
  for (const char* text : {"dense", "fp16", "topk", "dgc", "onebit", "qsgd", "randomk", "signum"})
    EXPECT_FALSE(in_turn(text)) << text;
  for (const char* text : {"csc", "csc:select=previous", "terngrad", "powersgd"})
    EXPECT_TRUE(in_turn(text)) << text;
}

// Only clipping by the norm of all buckets has to wait for them.
TEST(Calls, TellWhetherTheyNeedTheNorm) {
  const Bucket bucket = Bucket::single(0, "w", 100);
  for (Config config : law_configs()) {
    if (config.scheme == "dgc") config.options["clip"] = "0.5";
    const bool global = config.scheme == "dgc" && !config.options.contains("clip_norm");
    EXPECT_EQ(make_compressor(config, bucket, {0, 1})->needs_norm(), global) << config.str();
  }
  EXPECT_FALSE(make_compressor(Config::parse("dgc"), bucket, {0, 1})->needs_norm());
}

// A scheme that knows no better forgets a step by taking it back.
TEST(Calls, WhoCannotForgetTakesBack) {
  struct Own final : Compressor {
    Leg leg(std::uint64_t, int) const override { return {}; }
    std::size_t encode(const Turn&, TensorView, Bytes) override { return 0; }
    Status decode(const Turn&, const Inbox&, TensorView) override { return {}; }
    void undo(const Turn& turn) override { undone = turn.step; }
    void visit_state(StateVisitor&) override {}
    std::uint64_t undone = 0;
  } own;
  std::vector<float> gradient(3);
  own.forget({7, 0, {}, 0}, gradient);
  EXPECT_EQ(own.undone, 7u);
  EXPECT_EQ(own.rounds(), 1);
  EXPECT_FALSE(own.in_turn());
  EXPECT_FALSE(own.needs_norm());
}

// A bad gradient of halves is called that, not an average that is too large for them.
TEST(Calls, BadHalvesAreTheGradientsFault) {
  for (const Config& config : law_configs()) {
    for (const DType type : {DType::f16, DType::bf16}) {
      std::vector<std::uint16_t> halves(20, 0);
      halves[7] = 0x7fff;  // NaN in both
      const TensorView view(halves.data(), halves.size(), type, {});
      Alone alone(config, Bucket::single(0, "w", halves.size(), type));
      Status status;
      for (int round = 0; status.ok() && round < alone.compressor->rounds(); ++round) {
        alone.encode({0, round, {}, NAN}, view);
        status = alone.decode({0, round, {}, NAN}, view);
      }
      EXPECT_EQ(status.code, Code::skipped) << config.str();
      EXPECT_NE(std::string(status.what).find("not finite"), std::string::npos) << config.str();
    }
  }
}

// Matrices of several pieces, by rows and by columns, that end beside a border: a gradient of rank
// 2 arrives as it is.
TEST(PowerSgd, LongMatricesAreExactToo) {
  const std::pair<int, int> shapes[] = {{58, 1100}, {60, 1100}, {1100, 200},
                                        {30, 511},  {30, 513},  {8, 70000}};
  for (const auto& [rows, cols] : shapes) {
    const auto count = static_cast<std::size_t>(rows * cols);
    for (const int number : {1, 3}) {
      set_threads(number);
      Alone alone(Config::parse("powersgd"), Bucket{0, {{"w", 0, count, {rows, cols}}}});
      ASSERT_EQ(alone.compressor->rounds(), 2);
      for (std::uint64_t step = 0; step < 2; ++step) {
        std::vector<float> values(count);
        for (std::size_t i = 0; i < count; ++i) {
          const std::size_t row = i / static_cast<std::size_t>(cols);
          const std::size_t col = i % static_cast<std::size_t>(cols);
          values[i] = random_unit(step, row) * random_unit(7, col) -
                      random_unit(5, row) * random_unit(step + 20, col);
        }
        const std::vector<float> given = values;
        ASSERT_TRUE(alone.step(values).ok());
        for (std::size_t i = 0; i < count; ++i) ASSERT_NEAR(values[i], given[i], 1e-4) << i;
      }
    }
  }
  set_threads(1);
}

// A step is decoded with its own choice, whatever was encoded since.
TEST(Randomk, StepsInFlightKeepTheirChoice) {
  const auto compressor =
      make_compressor(Config::parse("randomk:density=0.1"), Bucket::single(0, "w", 500), {0, 1});
  std::vector<float> g = gradient(Shape::normal, 500, 1), average(500);
  std::vector<std::byte> first(compressor->leg(0, 0).bytes), second(first.size());
  compressor->encode({0, 0, {}, 0}, g, first);
  compressor->encode({1, 0, {}, 0}, g, second);
  ASSERT_TRUE(compressor->decode({0, 0, {}, 0}, {first, 0, {}}, average).ok());
  std::size_t sent = 0;
  for (std::size_t i = 0; i < 500; ++i) {
    if (average[i] == 0) continue;
    EXPECT_EQ(average[i], 10 * g[i]) << i;
    ++sent;
  }
  EXPECT_EQ(sent, 50u);
}

// A layer of one element has the deviation of that element.
TEST(Terngrad, ClipsALayerOfOneElement) {
  Alone alone(Config::parse("terngrad:clip=0.5"), Bucket::single(0, "w", 1));
  std::vector<float> values = {-8};
  ASSERT_TRUE(alone.step(values).ok());
  EXPECT_EQ(values[0], -4.0f);
}

// Where survivors travel as a sum, the NaN that voids the step is its first element.
TEST(Sparse, ABadGradientIsTheFirstElementOfASum) {
  for (const std::size_t count : {1u, 2u, 50u}) {
    const auto compressor =
        make_compressor(Config::parse("topk:density=1"), Bucket::single(0, "w", count), {0, 8});
    ASSERT_EQ(compressor->leg(0, 0).reduction, Reduction::sum);
    std::vector<float> g(count, 1.0f), out(count + 4, 7.0f);
    g.back() = std::numeric_limits<float>::infinity();
    compressor->encode({}, g, std::as_writable_bytes(std::span(out).first(count)));
    EXPECT_TRUE(std::isnan(out[0])) << count;
    EXPECT_EQ(out[count], 7.0f) << count;
  }
}

TEST(Calls, WhatNobodySetIsNothing) {
  EXPECT_EQ(Turn().step, 0u);
  EXPECT_EQ(Turn().round, 0);
  EXPECT_EQ(Turn().squared_norm, 0);
  EXPECT_EQ(Leg().bytes, 0u);
  EXPECT_FALSE(Leg().in_place);
  EXPECT_EQ(Inbox().slot_bytes, 0u);
  EXPECT_EQ(Inbox().culprit, -1);
  const Scheme scheme;
  EXPECT_EQ(scheme.id, 0);
  EXPECT_FALSE(scheme.reducible || scheme.biased || scheme.feedback || scheme.stochastic ||
               scheme.momentum || scheme.cuda || scheme.halves);
  EXPECT_EQ(scheme.traffic, 0);
  EXPECT_EQ(ThresholdSettings().density, 0.01);
}

// ---- every element ----

static const std::size_t lengths[] = {1, 2, 7, 8, 9, 63, 64, 65, 640, 4095, 4097, 8192, 8193};
// More than one thread's share.
static const std::size_t long_lengths[] = {65537, 131073, 262145};

// Places in a bucket of `count`: both ends, the middle, and the borders of pieces.
static std::vector<std::size_t> places_in(std::size_t count) {
  std::vector<std::size_t> places = {count - 1};
  for (const std::size_t border : {65536u, 131072u}) {
    if (border < count - 1) places.push_back(border);
  }
  if (count > 10'000) return places;
  places.insert(places.end(), {0, count / 2});
  for (const std::size_t border : {8u, 64u, 4096u, 8192u}) {
    if (border < count) places.insert(places.end(), {border - 1, border});
  }
  return places;
}

// Every element has its turn in the first step. Long buckets get one configuration per scheme.
static void for_steps(const std::function<void(const Config&, std::size_t, std::size_t)>& body) {
  std::string scheme;
  for (Config config : law_configs()) {
    const bool later = config.scheme == "randomk" || config.options.contains("select");
    if (later) config.options["density"] = "1";  // what is not chosen now waits
    const bool first = config.scheme != scheme || config.str() == "efsign:group=0";
    scheme = config.scheme;
    for (const std::size_t count : lengths) {
      for (const std::size_t at : places_in(count)) body(config, count, at);
    }
    for (const int number : {1, 3}) {
      set_threads(number);
      for (const std::size_t count : long_lengths) {
        if (!first || sanitized) continue;
        for (const std::size_t at : places_in(count)) body(config, count, at);
      }
    }
    set_threads(1);
  }
}

TEST(Calls, ASingleElementArrivesWhereverItIs) {
  for_steps([](const Config& config, std::size_t count, std::size_t at) {
    const float sign = at % 2 == 0 ? 8.0f : -8.0f;
    std::vector<float> values(count);
    values[at] = sign;
    Alone alone(config, Bucket::single(0, "w", count));
    ASSERT_TRUE(alone.step(values).ok()) << config.str() << " " << at << " of " << count;
    ASSERT_GT(sign * values[at], 0) << config.str() << " " << at << " of " << count;
  });
}

TEST(Calls, OneBadElementVoidsTheStepWhereverItIs) {
  for_steps([](const Config& config, std::size_t count, std::size_t at) {
    std::vector<float> values(count, 0.5f);
    values[at] = std::numeric_limits<float>::quiet_NaN();
    Alone alone(config, Bucket::single(0, "w", count));
    ASSERT_EQ(alone.step(values).code, Code::skipped)
        << config.str() << " " << at << " of " << count;
    ASSERT_FALSE(alone.compressor->sound().value_or(false)) << config.str() << " " << at;
  });
}

// One element of the other sign among many: bits of either kind in every byte of a payload.
TEST(Calls, OneElementOfTheOtherSignIsTold) {
  for (const char* text : {"onebit", "onebit:group=1", "efsign", "efsign:group=0", "signum"}) {
    for (const std::size_t count : {2u, 9u, 64u, 65u, 129u, 513u, 4097u}) {
      for (const std::size_t at : places_in(count)) {
        for (const float sign : {1.0f, -1.0f}) {
          std::vector<float> values(count, -sign);
          values[at] = sign;
          Alone alone(Config::parse(text), Bucket::single(0, "w", count));
          ASSERT_TRUE(alone.step(values).ok()) << text << " " << at << " of " << count;
          for (std::size_t i = 0; i < count; ++i)
            ASSERT_GT((i == at ? sign : -sign) * values[i], 0) << text << " " << i;
        }
      }
    }
  }
}

// Layers that begin and end anywhere, an empty one among them. Each has its own scale.
TEST(Calls, EveryLayerHasItsOwnScale) {
  const std::size_t sizes[] = {3, 0, 5000, 1, 4097, 64, 320, 7};
  Bucket bucket;
  for (const std::size_t size : sizes)
    bucket.parameters.push_back(
        {"w" + std::to_string(bucket.parameters.size()), bucket.elements(), size, {}});
  for (const char* text : {"terngrad:clip=0", "terngrad:clip=0,travel=sum", "efsign:group=0",
                           "onebit", "threshold:density=1"}) {
    Alone alone(Config::parse(text), bucket);
    std::vector<float> values(bucket.elements());
    for (const Parameter& parameter : bucket.parameters) {
      const auto first = values.begin() + static_cast<std::ptrdiff_t>(parameter.offset);
      std::fill_n(first, parameter.count, static_cast<float>(parameter.offset + 1));
    }
    const std::vector<float> given = values;
    ASSERT_TRUE(alone.step(values).ok()) << text;
    for (std::size_t i = 0; i < values.size(); ++i) ASSERT_EQ(values[i], given[i]) << text << i;
  }
}

// Frames as long as the sum are still gathered.
TEST(Sparse, FramesAsLongAsASumAreGathered) {
  int ties = 0;
  for (std::size_t elements = 1; elements < 600; ++elements) {
    const Config config = Config::parse("topk:density=0.2,values=f32");
    const Bucket bucket = Bucket::single(0, "w", elements);
    const std::size_t frame = make_compressor(config, bucket, {0, 8, false})->leg(0, 0).bytes;
    if (8 * elements % frame != 0 || 8 * elements == frame) continue;
    const auto world = static_cast<int>(8 * elements / frame);
    const auto leg = [&](int ranks) {
      return make_compressor(config, bucket, {0, ranks})->leg(0, 0).reduction;
    };
    EXPECT_EQ(leg(world), Reduction::gather) << elements;
    EXPECT_EQ(leg(world + 1), Reduction::sum) << elements;
    ++ties;
  }
  EXPECT_GT(ties, 0);
}

}  // namespace thinwire::calls
