// fuse_test.cc: lazy all-reduce: fewer collectives, in one order, and nothing else changes.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/exchange/fuse.h"

#include <cctype>
#include <cstring>

#include "tests/exchange/forwarding.h"
#include "tests/laws.h"
#include "thinwire/comm/reduce.h"

namespace thinwire {
namespace {

using namespace testing;

std::vector<Bucket> small_buckets(std::size_t count, std::size_t elements) {
  std::vector<Bucket> buckets;
  for (std::size_t b = 0; b < count; ++b) {
    buckets.push_back(
        Bucket::single(static_cast<std::uint16_t>(b), "w" + std::to_string(b), elements));
  }
  return buckets;
}

// Collectives per step, after the first steps.
std::uint64_t collectives(const std::vector<Config>& configs, std::size_t elements,
                          std::size_t fuse_bytes) {
  const auto buckets = small_buckets(configs.size(), elements);
  std::uint64_t result = 0;
  run_local(2, [&](Group& group) {
    Exchange exchange(group, buckets, configs, {.fuse_bytes = fuse_bytes});
    for (std::uint64_t step = 0; step < 3; ++step) {
      Model model = model_gradient(buckets, Shape::normal, seed_of(group, step));
      take_step(exchange, model, seed_of(group, step));
    }
    if (group.rank() == 0) result = exchange.report().traffic.collectives;
  });
  EXPECT_EQ(result % 3, 0u);
  return result / 3;
}

std::uint64_t collectives(const std::string& config, std::size_t buckets, std::size_t elements,
                          std::size_t fuse_bytes) {
  return collectives(std::vector<Config>(buckets, Config::parse(config)), elements, fuse_bytes);
}

TEST(Fuse, CollectivesFallAsExpected) {
  EXPECT_EQ(collectives("dense", 10, 100, 0), 10u);
  EXPECT_EQ(collectives("dense", 10, 100, 400), 10u);  // none is shorter than the threshold
  EXPECT_EQ(collectives("dense", 10, 100, 401), 5u);   // two reach it
  EXPECT_EQ(collectives("dense", 10, 100, 1000), 4u);  // 3 + 3 + 3 + 1
  EXPECT_EQ(collectives("dense", 10, 100, 1 << 20), 1u);
  EXPECT_EQ(collectives("fp16", 10, 100, 1000), 2u);
  EXPECT_EQ(collectives("dgc", 10, 100, 1 << 20), 10u);  // gathers are sent alone
}

// Rounds fuse separately: all norms in one collective, all chunks in another.
TEST(Fuse, EveryRoundFuses) {
  EXPECT_EQ(collectives("csc", 10, 6400, 0), 20u);
  EXPECT_EQ(collectives("csc", 10, 6400, 1 << 20), 2u);
  EXPECT_EQ(collectives("csc:select=previous", 10, 6400, 1 << 20), 1u);
  // Norms are 268 bytes each: eleven buckets and five. Chunks are 2688: eight pairs, for which the
  // eleventh bucket must wait until the twelfth has its norms.
  EXPECT_EQ(collectives("csc", 16, 6400, 2800), 2u + 8u);
}

TEST(Fuse, OtherTypesDoNotMix) {
  std::vector<Config> configs(9, Config::parse("dense"));
  configs[4] = Config::parse("fp16");
  EXPECT_EQ(collectives(configs, 100, 1 << 20), 3u);
  configs[4] = Config::parse("dgc");
  EXPECT_EQ(collectives(configs, 100, 1 << 20), 2u);  // the gather does not end the parcel
}

// Sums whose bits do not depend on an element's position: all of it in the order of ranks.
class InRankOrder final : public Forwarding {
 public:
  using Forwarding::Forwarding;

  Pending all_reduce(Bytes data, DType dtype, ReduceOp op, Stream stream) override {
    const auto ranks = static_cast<std::size_t>(size());
    std::vector<std::byte> slots(ranks * data.size());
    std::vector<std::size_t> sizes(ranks);
    Forwarding::all_gather(data, data.size(), slots, sizes, stream).wait();
    std::copy_n(slots.begin(), data.size(), data.begin());
    for (std::size_t r = 1; r < ranks; ++r)
      reduce_into(data, Bytes(slots).subspan(r * data.size(), data.size()), dtype, op);
    return {};
  }
};

class FusedLaws : public ::testing::TestWithParam<Config> {};

// Fused or not: the same averages, the same skipped steps, the same state, bit for bit, for every
// scheme, where sums do not depend on positions. So the laws hold for both.
TEST_P(FusedLaws, NothingElseChanges) {
  const auto buckets = awkward_buckets();
  for (const std::size_t fuse_bytes : {100u, 9000u, 1u << 20}) {
    run_local(3, [&](Group& local) {
      InRankOrder group(local);
      Exchange alone(group, buckets, GetParam());
      Exchange fused(group, buckets, GetParam(), {.fuse_bytes = fuse_bytes});
      for (std::uint64_t step = 0; step < 8; ++step) {
        Model a = model_gradient(buckets, Shape::heavy, seed_of(group, step));
        if (step % 4 == 2 && group.rank() == 1) {
          a[step == 2 ? 1 : 3][0] = std::numeric_limits<float>::quiet_NaN();
        }
        Model b = a;
        const bool skipped = take_step(alone, a, 0).skipped;
        ASSERT_EQ(take_step(fused, b, seed_of(group, step)).skipped, skipped);
        for (std::size_t i = 0; i < a.size(); ++i) ASSERT_TRUE(same_bits(a[i], b[i]));
      }
      ASSERT_EQ(serialize(state_of(alone)), serialize(state_of(fused)));
      ASSERT_EQ(alone.report().payload_bytes, fused.report().payload_bytes);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Registry, FusedLaws, ::testing::ValuesIn(law_configs()), config_name);

// One number per bucket, its maximum over the ranks.
class Largest final : public Compressor {
 public:
  Leg leg(std::uint64_t, int) const override { return {Reduction::max, DType::f32, 4}; }
  std::size_t encode(const Turn&, TensorView gradient, Bytes out) override {
    std::memcpy(out.data(), gradient.data, 4);
    return 4;
  }
  Status decode(const Turn&, const Inbox& inbox, TensorView average) override {
    std::memcpy(average.data, inbox.data.data(), 4);
    return {};
  }
  void undo(const Turn&) override {}
  void visit_state(StateVisitor&) override {}
};

TEST(Fuse, MaximaFuseToo) {
  run_local(3, [](Group& group) {
    const auto buckets = small_buckets(5, 1);
    std::vector<std::unique_ptr<Compressor>> compressors;
    for (std::size_t b = 0; b < buckets.size(); ++b)
      compressors.push_back(std::make_unique<Largest>());
    Exchange exchange(group, buckets, std::move(compressors), "largest", {.fuse_bytes = 64});
    Model model;
    for (int b = 0; b < 5; ++b)
      model.push_back({static_cast<float>(10 * b + (group.rank() + b) % 3)});
    take_step(exchange, model, 0);
    for (std::size_t b = 0; b < 5; ++b) EXPECT_EQ(model[b][0], 10 * static_cast<float>(b) + 2);
    EXPECT_EQ(exchange.report().traffic.collectives, 1u);
  });
}

TEST(Fuse, AnotherThresholdIsNamed) {
  run_local(2, [](Group& group) {
    const std::string text = error_of([&] {
      Exchange exchange(group, small_buckets(2, 8), Config::parse("dense"),
                        {.fuse_bytes = group.rank() ? 2000u : 1000u});
    });
    EXPECT_NE(text.find("rank 1 was set up otherwise"), std::string::npos) << text;
    EXPECT_NE(text.find("sums fused to 2000 bytes"), std::string::npos) << text;
  });
}

// Parcels that have arrived are reused, empty.
TEST(Fuser, ReusesParcels) {
  const OwnStream host{Device{}};
  Fuser fuser(8, host);
  std::vector<std::byte> bytes(4, std::byte{7});
  const Leg leg{Reduction::sum, DType::f32, 4};
  EXPECT_EQ(fuser.add(0, 0, leg, bytes), nullptr);
  EXPECT_EQ(fuser.add(5, 1, leg, bytes), nullptr);
  EXPECT_EQ(fuser.lowest_open(), 0);
  Parcel* const full = fuser.add(1, 0, leg, bytes);
  ASSERT_NE(full, nullptr);
  EXPECT_EQ(full->riders.size(), 2u);
  EXPECT_EQ(full->riders[1].offset, 4u);
  EXPECT_EQ(fuser.lowest_open(), 1);
  fuser.release(full);
  EXPECT_EQ(fuser.add(2, 0, leg, bytes), nullptr);
  EXPECT_EQ(fuser.close(0), full);
  EXPECT_EQ(full->leg.bytes, 4u);
}

// Riders of a device start where kernels can read several elements at once.
TEST(Fuser, AlignsItsRiders) {
  const OwnStream host{Device{}};
  Fuser fuser(1000, host, 64);
  std::vector<std::byte> a(4, std::byte{1}), b(70, std::byte{2}), c(2, std::byte{3});
  fuser.add(0, 0, {Reduction::sum, DType::f32, a.size()}, a);
  fuser.add(1, 0, {Reduction::sum, DType::f32, b.size(), true}, b);
  fuser.add(2, 0, {Reduction::sum, DType::f32, c.size()}, c);
  Parcel* const parcel = fuser.close(0);
  EXPECT_EQ(parcel->riders[1].offset, 64u);
  EXPECT_EQ(parcel->riders[2].offset, 192u);
  EXPECT_EQ(parcel->leg.bytes, 194u);
  parcel->pack(host, 2);
  std::ranges::fill(b, std::byte{9});
  EXPECT_EQ(parcel->unpack(host, parcel->riders[2]).data[1], std::byte{3});
  const Inbox inbox = parcel->unpack(host, parcel->riders[1]);
  EXPECT_EQ(inbox.data.size(), 70u);
  EXPECT_EQ(b[69], std::byte{2});  // in place: it is back where it came from
}

}  // namespace
}  // namespace thinwire
