// striped_test.cc: every scheme that fits, under every law, by split-reduce and with servers. Also
// what only they have: cuts, names, bytes, clashes.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/exchange/striped.h"

#include <numeric>

#include "tests/exchange/forwarding.h"
#include "tests/laws.h"
#include "tests/unbiased.h"
#include "thinwire/exchange/stripes.h"

namespace thinwire {
namespace {

using namespace testing;

bool fits(const ExchangeKind& kind, const Config& config) {
  return error_of([&] { check_fit(kind, config); }).empty();
}

struct Combination {
  Config config;
  ExchangeKind kind;
};

void PrintTo(const Combination& one, std::ostream* out) {
  *out << one.config.str() << " by " << one.kind.str();
}

// Alternates to save time: every scheme runs with every exchange, its variants with one each.
std::vector<Combination> combinations() {
  std::vector<Combination> all;
  std::string scheme;
  std::size_t turn = 0;
  for (const Config& config : law_configs()) {
    std::vector<std::string> texts = {"split", "server:1", "server:2"};
    if (config.scheme == scheme || sanitized) texts = {texts[turn++ % texts.size()]};
    scheme = config.scheme;
    for (const std::string& text : texts) {
      const ExchangeKind kind = ExchangeKind::parse(text);
      if (fits(kind, config)) all.push_back({config, kind});
    }
  }
  return all;
}

class Striped : public ::testing::TestWithParam<Combination> {
 protected:
  // Runs `law` on each of these numbers of workers, plus the servers.
  void on(std::initializer_list<int> workers,
          const std::function<void(Group&, const Config&, const ExchangeKind&)>& law) {
    const Combination& both = GetParam();
    for (const int ranks : workers) {
      if (sanitized && ranks > 3) break;
      run_local(ranks + both.kind.servers,
                [&](Group& group) { law(group, both.config, both.kind); });
    }
  }
};

TEST_P(Striped, ReplicasAreBitIdentical) {
  on({1, 2, 3, 4, 8}, [](Group& group, const Config& config, const ExchangeKind& kind) {
    law_replicas(group, config, Shape::normal, 3, kind);
    law_replicas(group, config, Shape::heavy, 2, kind);
    law_replicas(group, config, Shape::zero, 1, kind);
  });
}

TEST_P(Striped, ConservationAndBoundedResidual) {
  on({1, 3}, [](Group& group, const Config& config, const ExchangeKind& kind) {
    law_conservation(group, config, Shape::normal, sanitized ? 30 : 100, kind);
    law_conservation(group, config, Shape::heavy, sanitized ? 30 : 100, kind);
  });
}

TEST_P(Striped, ResumeIsExact) {
  on({3}, [](Group& group, const Config& config, const ExchangeKind& kind) {
    law_resume(group, config, kind);
  });
}

TEST_P(Striped, NonFiniteGradientSkipsTheStepOnAllRanks) {
  on({1, 2, 4}, [](Group& group, const Config& config, const ExchangeKind& kind) {
    law_nan(group, config, kind);
  });
}

TEST_P(Striped, StochasticSchemesAreRightOnAverage) {
  on({2}, [](Group& group, const Config& config, const ExchangeKind& kind) {
    law_unbiased(group, config, Shape::normal, 2000, kind);
  });
}

std::string combination_name(const ::testing::TestParamInfo<Combination>& info) {
  return test_name(info.param.config.str() + "_" + info.param.kind.str());
}

INSTANTIATE_TEST_SUITE_P(Registry, Striped, ::testing::ValuesIn(combinations()), combination_name);

// A scheme that needs the norm of all buckets waits for all of them. Only global clipping
// may do so.
TEST(Striped, AsksForTheNormOnlyToClipByIt) {
  const auto asks = [](const char* text) {
    const Bucket bucket = Bucket::single(0, "w", 500);
    return StripedCompressor(Config::parse(text), ExchangeKind::parse("split"), bucket, {0, 2})
        .needs_norm();
  };
  EXPECT_FALSE(asks("topk"));
  EXPECT_FALSE(asks("dgc"));
  EXPECT_TRUE(asks("dgc:clip=1"));
  EXPECT_FALSE(asks("dgc:clip=1,clip_norm=bucket"));
}

// ---- the cuts ----

// The cuts name the owners' state, so they are a promise: at a parameter's border or between rows
// if one is within an eighth of a stripe, otherwise at the nearest multiple of 64.
TEST(Stripes, AreCutWhereTheyWere) {
  const auto cuts = [](const Bucket& bucket, std::size_t stripes) {
    std::vector<std::size_t> firsts;
    for (const Stripe& stripe : cut(bucket, stripes)) firsts.push_back(stripe.first);
    return firsts;
  };
  using Firsts = std::vector<std::size_t>;
  EXPECT_EQ(cuts(Bucket::single(0, "w", 1000), 3), (Firsts{0, 320, 640}));
  EXPECT_EQ(cuts(Bucket::single(0, "w", 1060), 3), (Firsts{0, 384, 704}));
  EXPECT_EQ(cuts(Bucket{0, {{"w", 0, 1000, {100, 10}}}}, 3), (Firsts{0, 330, 670}));
  EXPECT_EQ(cuts(Bucket{0, {{"w", 0, 1000, {99, 10}}}}, 3), (Firsts{0, 320, 640}));
  EXPECT_EQ(cuts(Bucket{0, {{"w", 0, 1000, {2, 500}}}}, 4), (Firsts{0, 256, 500, 768}));
  // Borders within the slack of 62 of 500, and just outside it.
  EXPECT_EQ(cuts(Bucket{0, {{"a", 0, 562, {}}, {"b", 562, 438, {}}}}, 2), (Firsts{0, 562}));
  EXPECT_EQ(cuts(Bucket{0, {{"a", 0, 563, {}}, {"b", 563, 437, {}}}}, 2), (Firsts{0, 512}));
  EXPECT_EQ(cuts(Bucket{0, {{"a", 0, 438, {}}, {"b", 438, 562, {}}}}, 2), (Firsts{0, 438}));
  EXPECT_EQ(cuts(Bucket{0, {{"a", 0, 437, {}}, {"b", 437, 563, {}}}}, 2), (Firsts{0, 512}));
  // Of two equally near borders, the upper one; the same for rows.
  EXPECT_EQ(cuts(Bucket{0, {{"a", 0, 480, {}}, {"b", 480, 40, {}}, {"c", 520, 480, {}}}}, 2),
            (Firsts{0, 520}));
  EXPECT_EQ(cuts(Bucket{0, {{"w", 0, 1010, {101, 10}}}}, 2), (Firsts{0, 510}));
  // Rows at exactly the slack, and one beyond it.
  EXPECT_EQ(cuts(Bucket{0, {{"w", 0, 843, {3, 281}}, {"b", 843, 157, {}}}}, 2), (Firsts{0, 562}));
  EXPECT_EQ(cuts(Bucket{0, {{"w", 0, 849, {3, 283}}, {"b", 849, 151, {}}}}, 2), (Firsts{0, 512}));
  // One dimension has no rows.
  EXPECT_EQ(cuts(Bucket{0, {{"w", 0, 1000, {1000}}}}, 2), (Firsts{0, 512}));
  const auto rows = cut(Bucket{0, {{"w", 0, 1000, {100, 10}}}}, 2);
  EXPECT_EQ(rows[0].bucket.parameters[0].shape, (std::vector<std::int64_t>{50, 10}));
  EXPECT_EQ(rows[1].bucket.parameters[0].name, "w[500:1000]");
  const auto uneven = cut(Bucket{1, {{"w", 0, 1000, {2, 500}}}}, 4);
  EXPECT_TRUE(uneven[0].bucket.parameters[0].shape.empty());
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(uneven[i].bucket.id, 2 * (4 + i));
}

TEST(Stripes, CoverTheBucketOnceAndKeepNames) {
  for (const Bucket& bucket : awkward_buckets()) {
    for (const std::size_t count : {1u, 2u, 3u, 8u, 100u}) {
      std::size_t next = 0, empty_parameters = 0;
      for (const Stripe& stripe : cut(bucket, count)) {
        validate(stripe.bucket);
        EXPECT_EQ(stripe.first, next);
        next += stripe.count();
        ASSERT_EQ(stripe.pieces.size(), stripe.bucket.parameters.size());
        for (const Parameter& parameter : stripe.bucket.parameters)
          if (parameter.count == 0 && stripe.count() > 0) ++empty_parameters;
      }
      EXPECT_EQ(next, bucket.elements());
      EXPECT_EQ(empty_parameters, bucket.id == 1 ? 1u : 0u);
    }
  }
}

TEST(Stripes, KeepParametersAndRowsTogether) {
  const Bucket bucket{3, {{"w", 0, 1000, {100, 10}}, {"b", 1000, 90, {}}, {"x", 1090, 1110, {}}}};
  const std::vector<Stripe> halves = cut(bucket, 2);
  EXPECT_EQ(halves[1].first, 1090u);  // a border near the middle, 1100
  const std::vector<Stripe> thirds = cut(bucket, 3);
  EXPECT_EQ(thirds[1].first, 730u);  // between rows, next to 733
  EXPECT_EQ(thirds[0].bucket.parameters[0].name, "w[0:730]");
  EXPECT_EQ(thirds[0].bucket.parameters[0].shape, (std::vector<std::int64_t>{73, 10}));
  EXPECT_EQ(thirds[1].bucket.parameters[1].name, "b");
  EXPECT_EQ(thirds[2].first, 1472u);  // a multiple of 64, next to 1466
  EXPECT_EQ(thirds[2].bucket.parameters[0].name, "x[382:1110]");
}

// ---- against an oracle ----

// Each worker adds g to v and sends the k largest of each stripe to its owner, which does the same
// with the average.
TEST(Striped, DoubleCompressionIsWhatItSays) {
  const int ranks = 3;
  const std::size_t count = 192, stripe = 64, quota = 6;
  const std::vector<Bucket> buckets = {Bucket::single(0, "w", count)};
  const Config config = Config::parse("topk:density=0.1,values=f32,select=exact");
  std::vector<std::vector<double>> kept(ranks, std::vector<double>(count));
  std::vector<double> owned(count);
  const auto take_largest = [&](std::vector<double>& from, std::vector<double>& to) {
    for (std::size_t first = 0; first < count; first += stripe) {
      std::vector<std::size_t> order(stripe);
      std::iota(order.begin(), order.end(), first);
      std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
        return std::abs(from[a]) > std::abs(from[b]);
      });
      for (std::size_t i = 0; i < quota; ++i) {
        to[order[i]] += from[order[i]];
        from[order[i]] = 0;
      }
    }
  };
  std::vector<std::vector<double>> expected;
  for (std::uint64_t step = 0; step < 20; ++step) {
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      const auto g = model_gradient(buckets, Shape::normal, step * 100 + rank)[0];
      std::vector<double> sent(count);
      for (std::size_t i = 0; i < count; ++i) kept[rank][i] += g[i];
      take_largest(kept[rank], sent);
      for (std::size_t i = 0; i < count; ++i) owned[i] += sent[i] / ranks;
    }
    take_largest(owned, expected.emplace_back(count));
  }
  run_local(ranks, [&](Group& group) {
    Exchange exchange(group, buckets, config, {.kind = ExchangeKind::parse("split")});
    for (std::uint64_t step = 0; step < 20; ++step) {
      Model model = model_gradient(buckets, Shape::normal, seed_of(group, step));
      take_step(exchange, model, 0);
      for (std::size_t i = 0; i < count; ++i) ASSERT_NEAR(model[0][i], expected[step][i], 1e-5);
    }
  });
}

// Clipping by the norm of a bucket refers to the bucket, not to the stripe.
TEST(Striped, ClipsByTheNormOfTheWholeBucket) {
  const std::vector<Bucket> buckets = {Bucket::single(0, "a", 300), Bucket::single(1, "b", 500)};
  run_local(4, [&](Group& group) {
    Exchange exchange(group, buckets,
                      Config::parse("dgc:density=1,values=f32,momentum=0,clip=3,clip_norm=bucket"),
                      {.kind = ExchangeKind::parse("split")});
    // Only rank 0 has a gradient, so the average is a quarter of its clipped gradient.
    Model model = model_gradient(buckets, group.rank() == 0 ? Shape::normal : Shape::zero, 3);
    take_step(exchange, model, 0);
    EXPECT_NEAR(4 * norm(model[0]), 1.5, 1e-4);
    EXPECT_NEAR(4 * norm(model[1]), 1.5, 1e-4);
  });
}

// ---- state ----

TEST(Striped, StateIsNamedByParameterWhateverTheCuts) {
  const std::vector<Bucket> buckets = {Bucket::single(0, "w", 1000), Bucket::single(1, "x", 640)};
  for (const char* text : {"split", "server:2"}) {
    const ExchangeKind kind = ExchangeKind::parse(text);
    run_local(4, [&](Group& group) {
      Exchange exchange(group, buckets, Config::parse("dgc:density=0.05"), {.kind = kind});
      const State state = state_of(exchange);
      const bool works = !kind.is_server(group.rank(), group.size());
      EXPECT_EQ(state.count("w/v"), works ? 1u : 0u);
      if (works) {
        EXPECT_EQ(state.at("w/v").values.size(), 1000u);
        EXPECT_EQ(state.at("x/u").values.size(), 640u);
      }
      std::size_t owned = 0;
      for (const auto& [name, entry] : state) {
        EXPECT_FALSE(name.ends_with("/owner/u")) << "momentum, twice";
        if (!name.ends_with("/owner/v")) continue;
        EXPECT_EQ(entry.share, Share::summed);
        owned += entry.values.size();
      }
      const bool owns = !works || kind.servers == 0;
      EXPECT_NEAR(static_cast<double>(owned), owns ? 1640.0 / kind.owners(4) : 0, 128);
    });
  }
}

// A skipped step leaves the owners' memory unchanged to the bit: the workers have taken back what
// went into the averages.
TEST(Striped, SkippedStepLeavesOwnersAsTheyWere) {
  const std::vector<Bucket> buckets = {Bucket::single(0, "w", 1000), Bucket::single(1, "x", 640)};
  run_local(4, [&](Group& group) {
    const ExchangeKind kind = ExchangeKind::parse("server:2");
    Exchange exchange(group, buckets, Config::parse("topk:density=0.05"), {.kind = kind});
    const bool works = group.rank() < 2;
    for (std::uint64_t step = 0; step < 5; ++step) {
      Model model = model_gradient(buckets, Shape::normal, seed_of(group, step));
      if (step == 4 && group.rank() == 1) model[1][7] = std::numeric_limits<float>::quiet_NaN();
      const State before = state_of(exchange);
      const bool skipped = works ? take_step(exchange, model, 0).skipped : exchange.serve().skipped;
      ASSERT_EQ(skipped, step == 4);
      State after = state_of(exchange);
      after.at("exchange/step") = before.at("exchange/step");
      if (!works) {
        EXPECT_EQ(before == after, step == 4);
      }
    }
  });
}

// ---- bytes ----

// A gather's bytes grow with the workers, a split-reduce's do not.
TEST(Striped, BytesDoNotGrowWithTheWorkers) {
  const std::vector<Bucket> buckets = {Bucket::single(0, "w", 100000)};
  const auto sent_by = [&](int ranks, const std::string& kind) {
    double sent = 0;
    run_local(ranks, [&](Group& group) {
      Exchange exchange(group, buckets, Config::parse("topk:density=0.01,select=exact"),
                        {.kind = ExchangeKind::parse(kind)});
      for (std::uint64_t step = 0; step < 4; ++step) {
        Model model = model_gradient(buckets, Shape::normal, seed_of(group, step));
        take_step(exchange, model, 0);
      }
      if (group.rank() == 0) sent = static_cast<double>(exchange.report().traffic.sent) / 4;
    });
    return sent;
  };
  const double frame = sent_by(2, "auto");
  EXPECT_NEAR(sent_by(8, "auto"), 7 * frame, 0.2 * frame);
  EXPECT_LT(sent_by(8, "split"), 2.2 * frame);
  EXPECT_NEAR(sent_by(9, "server:1"), frame, 0.2 * frame);
}

// ---- damage ----

// Flips a bit of what rank `from` sent us, in the scatter or in the gather.
class Damaging final : public Forwarding {
 public:
  Damaging(Group& inner, std::size_t from, bool scatter)
      : Forwarding(inner), from_(from), scatter_(scatter) {}

  Pending all_gather(ConstBytes mine, std::size_t slot_bytes, Bytes slots,
                     std::span<std::size_t> sizes, Stream stream) override {
    Forwarding::all_gather(mine, slot_bytes, slots, sizes, stream).wait();
    if (!scatter_ && gathers_++ > 0) slots[from_ * slot_bytes + 25] ^= std::byte{1};
    return {};
  }
  Pending all_to_all(ConstBytes mine, std::span<const std::size_t> mine_sizes,
                     std::size_t slot_bytes, Bytes slots, std::span<std::size_t> sizes,
                     Stream stream) override {
    Forwarding::all_to_all(mine, mine_sizes, slot_bytes, slots, sizes, stream).wait();
    if (scatter_) slots[from_ * slot_bytes + 25] ^= std::byte{1};
    return {};
  }

 private:
  std::size_t from_;
  bool scatter_;
  int gathers_ = 0;
};

TEST(Striped, FlippedBitNamesTheRank) {
  const std::vector<Bucket> buckets = {Bucket::single(0, "w", 5000)};
  for (const bool scatter : {true, false}) {
    EXPECT_NE(error_of([&] {
                run_local(3, [&](Group& group) {
                  Damaging damaging(group, 2, scatter);
                  Group& mine = group.rank() == 1 ? damaging : group;
                  Exchange exchange(mine, buckets, Config::parse("topk:density=0.01"),
                                    {.kind = ExchangeKind::parse("split")});
                  Model model = model_gradient(buckets, Shape::normal, seed_of(group, 0));
                  take_step(exchange, model, 0);
                });
              }).find("bytes from rank 2"),
              std::string::npos)
        << scatter;
  }
}

// ---- which options work together ----

std::string clash(const std::string& config, const std::string& kind) {
  return error_of([&] { check_fit(ExchangeKind::parse(kind), Config::parse(config)); });
}

TEST(ExchangeKind, TextsGoBothWays) {
  for (const char* text : {"auto", "split", "server:1", "server:12", "split,second=dgc:momentum=0",
                           "server:2,second=topk:density=0.5,values=f16"}) {
    EXPECT_EQ(ExchangeKind::parse(text).str(), text);
  }
  EXPECT_EQ(ExchangeKind::parse("server").str(), "server:1");
  for (const char* text : {"", "ring", "server:", "server:0", "server:-1", "server:2x", "split:2",
                           "split,", "split,first=topk", "auto,second=topk"}) {
    EXPECT_NE(error_of([&] { ExchangeKind::parse(text); }).find("expected auto, split or server:S"),
              std::string::npos)
        << text;
  }
}

TEST(ExchangeKind, ClashesAreNamed) {
  EXPECT_EQ(clash("fp16", "auto"), "");
  for (const char* kind : {"split", "server:2"}) {
    for (const char* scheme : {"dense", "fp16", "bf16"}) {
      const std::string text = clash(scheme, kind);
      EXPECT_NE(text.find(std::string("scheme '") + scheme + "' travels by all-reduce; exchange " +
                          kind + " needs one that gathers"),
                std::string::npos)
          << text;
    }
    EXPECT_EQ(clash("dgc", kind), "");
    EXPECT_EQ(clash("topk:feedback=off", kind), "");
    EXPECT_EQ(clash("topk:density=1", kind), "");  // with auto it would use an all-reduce
  }
  EXPECT_NE(clash("dgc", "split,second=dense").find("'dense' travels by all-reduce"),
            std::string::npos);
  EXPECT_NE(clash("dgc", "split,second=dgc").find("accumulates momentum"), std::string::npos);
  EXPECT_EQ(clash("dgc", "split,second=dgc:momentum=0"), "");
  EXPECT_NE(clash("dgc", "split,second=dgc:momentum=0,clip=1").find("clips gradients"),
            std::string::npos);
  EXPECT_NE(clash("dgc", "split,second=gzip").find("unknown scheme 'gzip'"), std::string::npos);
}

TEST(ExchangeKind, SecondHasNoMomentumAndNoClipping) {
  const ExchangeKind split = ExchangeKind::parse("split");
  const Config config = Config::parse("dgc:clip=1,clip_norm=bucket,density=0.01,nesterov=on");
  EXPECT_EQ(second_of(split, config).str(), "dgc:density=0.01,momentum=0");
  const ExchangeKind other = ExchangeKind::parse("split,second=topk:density=0.5");
  EXPECT_EQ(second_of(other, config).str(), "topk:density=0.5");
}

TEST(ExchangeKind, RanksThatDoNotFitAreNamed) {
  const std::vector<Bucket> buckets = {Bucket::single(0, "w", 5000)};
  run_local(2, [&](Group& group) {
    const std::string few = error_of([&] {
      Exchange exchange(group, buckets, Config::parse("topk"),
                        {.kind = ExchangeKind::parse("server:2")});
    });
    EXPECT_NE(few.find("expected at least 3 ranks"), std::string::npos) << few;
    const std::string odd = error_of([&] {
      Exchange exchange(group, buckets, Config::parse("topk"),
                        {.kind = ExchangeKind::parse(group.rank() == 1 ? "server:1" : "split")});
    });
    EXPECT_NE(odd.find("rank 1 was set up otherwise"), std::string::npos) << odd;
    EXPECT_NE(odd.find("exchange server:1"), std::string::npos) << odd;
    Exchange exchange(group, buckets, Config::parse("topk"),
                      {.kind = ExchangeKind::parse("split")});
    EXPECT_NE(error_of([&] { exchange.serve(); }).find("works: submit()"), std::string::npos);
  });
}

}  // namespace
}  // namespace thinwire
