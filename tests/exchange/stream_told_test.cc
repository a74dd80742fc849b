// stream_told_test.cc: what an exchange of device memory tells: the first error again and again,
// who is at fault, the step and the traffic; with compressors that do as they are told.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "tests/exchange/stream_laws.h"

namespace thinwire::stream_told {

using namespace testing;

static const std::vector<Bucket> two = {Bucket::single(0, "a", 3), Bucket::single(1, "b", 2)};

static bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

class Scripted final : public Compressor {
 public:
  std::function<Leg(std::uint64_t)> legs = [](std::uint64_t) {
    return Leg{Reduction::gather, DType::f32, 4};
  };
  std::function<void(const Turn&, Bytes)> encodes = [](const Turn& turn, Bytes) {
    *turn.written = 4;
  };
  std::function<void(const Turn&, const Inbox&)> decodes = [](const Turn&, const Inbox&) {};

  std::function<void(const Turn&, float)> concludes = [](const Turn&, float) {};
  Status status;  // of decode()

  Leg leg(std::uint64_t step, int) const override { return legs(step); }
  std::size_t encode(const Turn& turn, TensorView, Bytes out) override {
    encodes(turn, out);
    return out.size();
  }
  Status decode(const Turn& turn, const Inbox& inbox, TensorView) override {
    decodes(turn, inbox);
    return status;
  }
  void undo(const Turn&) override {}
  void conclude(const Turn& turn, TensorView, float fill) override { concludes(turn, fill); }
  void visit_state(StateVisitor&) override {}
};

using Scripts = std::vector<std::unique_ptr<Compressor>>;

static Scripts scripts(const std::function<void(Scripted&)>& prepare, std::size_t count) {
  Scripts all;
  for (std::size_t i = 0; i < count; ++i) {
    auto one = std::make_unique<Scripted>();
    prepare(*one);
    all.push_back(std::move(one));
  }
  return all;
}

// The error of a step in which decode() of every bucket raises this verdict.
static std::string error_with(const Verdict& verdict) {
  std::string text;
  run_local(1, [&](Group& group) {
    const auto raise = [&](Scripted& one) {
      one.decodes = [&](const Turn& turn, const Inbox&) { *turn.verdict = verdict; };
    };
    StreamExchange exchange({group}, two, scripts(raise, 2), "scripted");
    Model model = {{1, 2, 3}, {4, 5}};
    text = error_of([&] { take_step(exchange, model, 0, {}); });
    EXPECT_EQ(error_of([&] { exchange.outcome(); }), text);
    EXPECT_EQ(error_of([&] { (void)exchange.result(); }), text);
    if (text.empty()) return;
    EXPECT_EQ(error_of([&] { exchange.finish({}); }), text);
    std::vector<float> values(3);
    EXPECT_EQ(error_of([&] { exchange.submit(0, values, {}); }), text);
    EXPECT_EQ(error_of([&] { exchange.submit(9, values, {}); }), text);
  });
  return text;
}

TEST(StreamTold, EveryFaultIsExplained) {
  const std::pair<Code, const char*> faults[] = {
      {Code::truncated, "the message ends too early"},
      {Code::bad_magic, "not a thinwire frame"},
      {Code::bad_version, "written by another version of the frame format"},
      {Code::bad_checksum, "frame's checksum differs: damaged on the way"},
      {Code::bad_value, "a field of the frame is out of range"},
      {Code::mismatch, "the frame is of another step, bucket, scheme or size than expected"},
  };
  for (const auto& [code, what] : faults) {
    EXPECT_EQ(error_with({0, 0, fault_of(code, 3, 1)}),
              std::string("rank 0, step 0, bucket 1, bytes from rank 3: ") + what +
                  "; the step was not taken, restart from the last checkpoint");
  }
  EXPECT_TRUE(has(error_with({0, 0, fault_of(Code::skipped, 0, 0)}), "an unknown fault"));
}

TEST(StreamTold, AFindingThatIsNotToldIsAnError) {
  EXPECT_TRUE(has(error_with({1, 0, 0}),
                  "rank 0, step 0, bucket 0: a scheme found its gradient beyond the limit"));
  EXPECT_EQ(error_with({1, 1, 0}), "");
  EXPECT_EQ(error_with({0, 1, 0}), "");
  EXPECT_EQ(error_with({0, 0, 0}), "");
}

// A step that fails on the host: what was encoded is concluded once, with zeros, and nothing else.
TEST(StreamTold, WhatWasEncodedIsConcluded) {
  for (const bool early : {true, false}) {
    run_local(1, [&](Group& group) {
      int made = 0, concluded = 0;
      const auto prepare = [&](Scripted& one) {
        const bool second = made++ == 1;
        if (!early) one.status = {Code::bad_value, "odd"};
        one.encodes = [early, second](const Turn& turn, Bytes) {
          if (early && second) fail("no");
          *turn.written = 4;
        };
        one.concludes = [&](const Turn& turn, float fill) {
          ++concluded;
          EXPECT_EQ(turn.round, 0);
          EXPECT_EQ(fill, 0.0f);
          EXPECT_TRUE(turn.verdict->void_step());
        };
      };
      StreamExchange exchange({group}, two, scripts(prepare, 2), "scripted");
      Model model = {{1, 2, 3}, {4, 5}};
      const std::string text = error_of([&] { take_step(exchange, model, 0, {}, 7.0f); });
      EXPECT_EQ(text, early ? "no"
                            : "rank 0, step 0, bucket 0: odd; the step was not taken, restart from "
                              "the last checkpoint");
      EXPECT_EQ(concluded, early ? 1 : 2);
      State state;
      StateSaver saver(state);
      EXPECT_EQ(error_of([&] { exchange.visit_state(saver); }), "");
    });
  }
}

// Memory that could not be put back must not be saved.
TEST(StreamTold, AFailureToPutBackIsToldForEver) {
  run_local(1, [](Group& group) {
    const auto prepare = [](Scripted& one) {
      one.status = {Code::bad_value, "odd"};
      one.concludes = [](const Turn&, float) { fail("stuck"); };
    };
    StreamExchange exchange({group}, {two[0]}, scripts(prepare, 1), "scripted");
    Model model = {{1, 2, 3}};
    (void)error_of([&] { take_step(exchange, model, 0, {}); });
    const std::string text = error_of([&] { exchange.outcome(); });
    EXPECT_TRUE(has(text, "bucket 0: odd; ")) << text;
    EXPECT_TRUE(has(text, "; and what was sent could not be put back: stuck")) << text;
    State state;
    StateSaver saver(state);
    EXPECT_EQ(error_of([&] { exchange.visit_state(saver); }), text);
  });
}

// Nobody has asked what became of the step: the state is not saved before that is known.
TEST(StreamTold, AFaultIsToldBeforeTheStateIsSaved) {
  run_local(1, [](Group& group) {
    const auto prepare = [](Scripted& one) {
      one.decodes = [](const Turn& turn, const Inbox&) {
        turn.verdict->fault = fault_of(Code::mismatch, 0, 0);
      };
    };
    StreamExchange exchange({group}, {two[0]}, scripts(prepare, 1), "scripted");
    std::vector<float> values(3);
    exchange.submit(0, values, {});
    exchange.finish({});
    State state;
    StateSaver saver(state);
    EXPECT_TRUE(has(error_of([&] { exchange.visit_state(saver); }), "the frame is of another"));
    EXPECT_EQ(error_of([&] { exchange.visit_state(saver); }), "");
  });
}

// Both buckets of rank 0 arrive damaged; the first is named.
class Damaging final : public Forwarding {
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

TEST(StreamTold, OfSeveralFaultsTheFirst) {
  run_local(2, [](Group& group) {
    Damaging line(group);
    const std::vector<Bucket> buckets = {Bucket::single(0, "a", 5000),
                                         Bucket::single(1, "b", 5000)};
    StreamExchange exchange({line}, buckets, Config::parse("topk:density=0.01"));
    Model model = model_gradient(buckets, Shape::normal, seed_of(group, 0));
    const std::string text = error_of([&] { take_step(exchange, model, 0, {}); });
    EXPECT_TRUE(has(text, "step 0, bucket 0, bytes from rank 0: frame's checksum")) << text;
  });
}

TEST(StreamTold, MoreBytesThanThereIsRoomForAreAnError) {
  const auto error = [](std::uint64_t bytes) {
    std::string text;
    run_local(1, [&](Group& group) {
      const auto write = [&](Scripted& one) {
        one.encodes = [&](const Turn& turn, Bytes) { *turn.written = bytes; };
      };
      StreamExchange exchange({group}, two, scripts(write, 2), "scripted");
      Model model = {{1, 2, 3}, {4, 5}};
      text = error_of([&] { take_step(exchange, model, 0, {}); });
    });
    return text;
  };
  EXPECT_EQ(error(0), "");
  EXPECT_EQ(error(4), "");
  EXPECT_TRUE(has(error(5), "rank 0: a scheme has written 5 bytes, at most 4 were expected"));
}

// A device does not know how long a message is: behind it there are zeros, whatever was there in
// an earlier step, and however long the slots were then.
TEST(StreamTold, BehindAShortMessageThereAreZeros) {
  const std::size_t most[] = {8, 8, 8, 16, 16, 4, 8, 8, 0, 8, 1};
  const std::size_t sent[] = {8, 3, 5, 2, 16, 4, 1, 0, 0, 6, 1};
  run_local(3, [&](Group& group) {
    const auto rank = static_cast<std::size_t>(group.rank());
    // Each rank sends another length.
    const auto length = [&](std::uint64_t step, std::size_t from) {
      return sent[step] > from ? sent[step] - from : 0;
    };
    const auto prepare = [&](Scripted& one) {
      one.legs = [&](std::uint64_t step) { return Leg{Reduction::gather, DType::f32, most[step]}; };
      one.encodes = [&](const Turn& turn, Bytes out) {
        std::ranges::fill(out, std::byte{0xff});
        *turn.written = length(turn.step, rank);
      };
      one.decodes = [&](const Turn& turn, const Inbox& inbox) {
        for (std::size_t from = 0; from < 3 && most[turn.step] > 0; ++from) {
          const ConstBytes slot = inbox.slot(static_cast<int>(from));
          ASSERT_EQ(slot.size(), most[turn.step]);
          for (std::size_t i = 0; i < slot.size(); ++i)
            ASSERT_EQ(slot[i] == std::byte{0xff}, i < length(turn.step, from))
                << "step " << turn.step << " from " << from << " byte " << i;
          ASSERT_TRUE(std::ranges::all_of(slot.subspan(length(turn.step, from)), [](std::byte b) {
            return b == std::byte{0};
          })) << turn.step;
        }
      };
    };
    StreamExchange exchange({group}, {two[0]}, scripts(prepare, 1), "scripted");
    std::uint64_t all = 0;
    for (std::uint64_t step = 0; step < std::size(most); ++step) {
      Model model = {{1, 2, 3}};
      EXPECT_EQ(take_step(exchange, model, 0, {}).step, step);
      all += length(step, rank);
    }
    EXPECT_EQ(exchange.report().payload_bytes, all);
  });
}

// ---- steps and counts ----

TEST(StreamTold, StepsAreCountedFromTheFirst) {
  run_local(2, [](Group& group) {
    for (const bool empty : {false, true}) {
      const std::vector<Bucket> buckets = empty ? std::vector<Bucket>{} : two;
      StreamExchange exchange({group}, buckets, Config::parse("dense"));
      EXPECT_FALSE(exchange.result().has_value());
      EXPECT_EQ(exchange.outcome().step, 0u);
      EXPECT_FALSE(exchange.outcome().skipped);
      EXPECT_EQ(exchange.report().steps, 0u);
      for (std::uint64_t step = 0; step < 3; ++step) {
        Model model = model_gradient(buckets, Shape::normal, seed_of(group, step));
        const bool bad = !empty && step == 1;
        if (bad && group.rank() == 1) model[0][2] = std::numeric_limits<float>::infinity();
        const StepResult result = take_step(exchange, model, 0, {});
        EXPECT_EQ(result.step, step);
        EXPECT_EQ(result.skipped, bad);
        EXPECT_EQ(exchange.result()->step, step);
        EXPECT_EQ(exchange.result()->skipped, bad);
        EXPECT_EQ(exchange.report().steps, step + 1);
        EXPECT_EQ(exchange.report().skipped, empty || step < 1 ? 0u : 1u);
      }
    }
  });
}

TEST(StreamTold, StepsThatNobodyAskedAboutAreCounted) {
  run_local(1, [](Group& group) {
    for (const bool empty : {false, true}) {
      const std::vector<Bucket> buckets = empty ? std::vector<Bucket>{} : two;
      StreamExchange exchange({group}, buckets, Config::parse("dense"));
      std::vector<float> a(3), b(2);
      for (int step = 0; step < 3; ++step) {
        if (!empty) exchange.submit(1, b, {});
        if (!empty) exchange.submit(0, a, {});
        exchange.finish({});
      }
      EXPECT_EQ(exchange.report().steps, 3u);
      EXPECT_EQ(exchange.outcome().step, 2u);
    }
  });
}

// As an Exchange counts it: without what the ranks agree upon.
TEST(StreamTold, TrafficIsThatOfTheGradients) {
  run_local(3, [](Group& group) {
    for (const char* text : {"dense", "topk:density=0.02", "fp16"}) {
      const std::vector<Bucket> buckets = {Bucket::single(0, "a", 5000),
                                           Bucket::single(1, "b", 3000)};
      const auto expect_same = [](const Traffic& a, const Traffic& b) {
        EXPECT_EQ(a.sent, b.sent);
        EXPECT_EQ(a.received, b.received);
        EXPECT_EQ(a.collectives, b.collectives);
      };
      Exchange exchange(group, buckets, Config::parse(text));
      Traffic once;
      for (std::uint64_t step = 0; step < 2; ++step) {
        Model model = model_gradient(buckets, Shape::normal, seed_of(group, step));
        take_step(exchange, model, 0);
        if (step == 0) once = exchange.report().traffic;
      }
      const Traffic twice = exchange.report().traffic;
      EXPECT_EQ(once.collectives, 2u) << text;
      EXPECT_GT(once.sent, 0u);
      StreamExchange streams({group}, buckets, Config::parse(text));
      expect_same(streams.report().traffic, {});
      for (std::uint64_t step = 0; step < 2; ++step) {
        Model model = model_gradient(buckets, Shape::normal, seed_of(group, step));
        take_step(streams, model, 0, {});
        expect_same(streams.report().traffic, step == 0 ? once : twice);
      }
    }
  });
}

}  // namespace thinwire::stream_told
