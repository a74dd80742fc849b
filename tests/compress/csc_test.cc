// csc_test.cc: coarse-grained sparse communication against a model in double precision, and corner
// cases that the laws of all schemes do not reach.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>

#include "tests/laws.h"
#include "thinwire/kernels/csc.h"

namespace thinwire {
namespace {

using namespace testing;

// All workers of one bucket, as in the paper: no chunk is cleared late, nothing is packed.
class Oracle {
 public:
  Oracle(std::size_t count, std::size_t chunk, std::size_t wanted, bool nesterov, bool previous,
         int warmup, std::size_t ranks)
      : count_(count),
        chunk_(chunk),
        wanted_(wanted),
        nesterov_(nesterov),
        previous_(previous),
        warmup_(warmup),
        u_(ranks, std::vector<double>(count)),
        v_(u_),
        norms_((count + chunk - 1) / chunk) {}

  std::vector<double> step(int number, const std::vector<std::vector<float>>& gradients) {
    const double m = 0.8;
    for (std::size_t r = 0; r < u_.size(); ++r) {
      for (std::size_t i = 0; i < count_; ++i) {
        const double g = gradients[r][i];
        u_[r][i] = nesterov_ ? m * (u_[r][i] + g) : m * u_[r][i] + g;
        v_[r][i] += nesterov_ ? u_[r][i] + g : u_[r][i];
      }
    }
    if (!previous_) measure();
    std::vector<std::size_t> order(norms_.size());
    std::iota(order.begin(), order.end(), 0u);
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return norms_[a] > norms_[b]; });
    const bool dense = number < warmup_;
    if (previous_ && dense) measure();
    if (!dense) order.resize(wanted_);
    std::vector<double> average(count_);
    for (const std::size_t c : order) {
      for (std::size_t i = c * chunk_; i < std::min(count_, (c + 1) * chunk_); ++i) {
        for (std::size_t r = 0; r < u_.size(); ++r) {
          average[i] += v_[r][i] / static_cast<double>(u_.size());
          v_[r][i] = 0;
          if (!dense) u_[r][i] = 0;
        }
      }
    }
    if (previous_ && !dense) measure();
    return average;
  }

 private:
  void measure() {
    std::fill(norms_.begin(), norms_.end(), 0.0);
    for (const auto& v : v_) {
      for (std::size_t i = 0; i < count_; ++i) {
        const std::size_t length = std::min(chunk_, count_ - i / chunk_ * chunk_);
        norms_[i / chunk_] += std::abs(v[i]) / static_cast<double>(length);
      }
    }
  }

  std::size_t count_, chunk_, wanted_;
  bool nesterov_, previous_;
  int warmup_;
  std::vector<std::vector<double>> u_, v_;
  std::vector<double> norms_;
};

TEST(Csc, IsThePapers) {
  const std::size_t count = 1003, chunk = 10, wanted = 15;  // 101 chunks, the last one of 3
  for (const bool nesterov : {false, true}) {
    for (const bool previous : {false, true}) {
      for (const int warmup : {0, 4}) {
        const Config config = Config::parse(
            "csc:density=0.15,chunk=10,momentum=0.8,warmup=" + std::to_string(warmup) +
            (nesterov ? ",nesterov=on" : "") + (previous ? ",select=previous" : ""));
        run_local(3, [&](Group& group) {
          Exchange exchange(group, {Bucket::single(0, "w", count)}, config);
          Oracle oracle(count, chunk, wanted, nesterov, previous, warmup, 3);
          for (int step = 0; step < 25; ++step) {
            std::vector<std::vector<float>> all;
            for (std::uint64_t rank = 0; rank < 3; ++rank)
              all.push_back(
                  gradient(Shape::heavy, count, static_cast<std::uint64_t>(step) * 10 + rank));
            const auto expected = oracle.step(step, all);
            std::vector<float>& mine = all[static_cast<std::size_t>(group.rank())];
            exchange.submit(0, std::span(mine));
            ASSERT_FALSE(exchange.finish().skipped);
            for (std::size_t i = 0; i < count; ++i)
              ASSERT_NEAR(mine[i], expected[i], 1e-5 * (1 + std::abs(expected[i])))
                  << config.str() << ", step " << step << ", element " << i;
          }
        });
      }
    }
  }
}

TEST(Csc, WarmupIsDenseMomentum) {
  run_local(2, [](Group& group) {
    const std::vector<Bucket> buckets = awkward_buckets();
    Exchange dense(group, buckets, Config::parse("dense"));
    Exchange csc(group, buckets, Config::parse("csc:warmup=6,momentum=0.7"));
    Model velocity = model_gradient(buckets, Shape::zero, 0);
    for (std::uint64_t step = 0; step < 6; ++step) {
      Model a = model_gradient(buckets, Shape::normal, seed_of(group, step)), b = a;
      take_step(dense, a, 0);
      take_step(csc, b, 0);
      for (std::size_t k = 0; k < a.size(); ++k) {
        for (std::size_t i = 0; i < a[k].size(); ++i) {
          velocity[k][i] = 0.7f * velocity[k][i] + a[k][i];
          ASSERT_NEAR(velocity[k][i], b[k][i], 1e-5);
        }
      }
    }
  });
}

// The laws of all schemes, across the end of a warm-up.
TEST(Csc, LawsHoldAcrossTheWarmup) {
  for (const char* text : {"csc:density=0.1,warmup=4", "csc:density=0.1,warmup=4,select=previous",
                           "csc:density=0.1,warmup=11,values=bf16,select=previous"}) {
    run_local(2, [&](Group& group) {
      const Config config = Config::parse(text);
      law_replicas(group, config, Shape::heavy, 8);
      law_conservation(group, config, Shape::heavy, 1000);
      law_resume(group, config);
      law_nan(group, config);
    });
  }
}

// Equal norms: the lower number goes first, and all of it arrives in the end.
TEST(Csc, TiesGoByNumber) {
  run_local(2, [](Group& group) {
    const std::size_t count = 640;  // 64 chunks of ten, eight of them a step
    Exchange exchange(group, {Bucket::single(0, "w", count)},
                      Config::parse("csc:density=0.125,chunk=10,momentum=0"));
    for (std::size_t step = 0; step < 8; ++step) {
      auto g = gradient(Shape::constant, count, 1);
      exchange.submit(0, std::span(g));
      exchange.finish();
      for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(g[i] != 0, i / 80 == step) << i;
    }
  });
}

// A last chunk of one element competes by its mean. By its sum it would wait forever.
TEST(Csc, ShortLastChunkDoesNotStarve) {
  run_local(1, [](Group& group) {
    const std::size_t count = 64 * 16 + 1;
    Exchange exchange(group, {Bucket::single(0, "w", count)}, Config::parse("csc"));
    bool sent = false;
    for (std::size_t step = 0; step < 22 && !sent; ++step) {
      auto g = gradient(Shape::constant, count, 1);
      exchange.submit(0, std::span(g));
      exchange.finish();
      sent = g.back() != 0;
    }
    EXPECT_TRUE(sent);
  });
}

// When another bucket makes a step skipped, u and v stay as if nothing had been sent, bit for bit,
// and the next step makes the same choice.
TEST(Csc, VoidStepRestoresMemory) {
  const std::vector<Bucket> buckets = {Bucket::single(0, "a", 900), Bucket::single(1, "b", 900)};
  for (const char* select : {"current", "previous"}) {
    for (const char* values : {"f32", "bf16"}) {
      const Config config =
          Config::parse(std::string("csc:select=") + select + ",values=" + values);
      run_local(2, [&](Group& group) {
        Exchange exchange(group, buckets, config);
        for (std::uint64_t step = 0; step < 3; ++step) {
          Model model = model_gradient(buckets, Shape::normal, seed_of(group, step));
          take_step(exchange, model, 0);
        }
        State before = state_of(exchange);
        Model model = model_gradient(buckets, Shape::normal, seed_of(group, 3));
        auto u = before.at("a/u").values, v = before.at("a/v").values;
        csc_pass_reference({Accumulate::momentum, 0.9f}, model[0].data(), u.data(), v.data(), 900);
        if (group.rank() == 1) model[1][899] = std::numeric_limits<float>::infinity();
        ASSERT_TRUE(take_step(exchange, model, 0).skipped);
        const State after = state_of(exchange);
        if (group.rank() == 0) {
          EXPECT_TRUE(same_bits(after.at("a/u").values, u));
          EXPECT_TRUE(same_bits(after.at("a/v").values, v));
        } else {  // this rank's gradient was bad
          EXPECT_EQ(norm(after.at("a/u").values), 0);
          for (std::size_t i = 0; i < 900; ++i)
            ASSERT_NEAR(after.at("a/v").values[i], before.at("a/v").values[i], 1e-5);
        }
        if (after.count("bucket0/norms")) {
          EXPECT_EQ(after.at("bucket0/norms"), before.at("bucket0/norms"));
        }
      });
    }
  }
}

// Values too large for f16 are sent in instalments, instead of skipping every step from now on.
TEST(Csc, LargeValuesInHalvesArriveInTheEnd) {
  run_local(3, [](Group& group) {
    Exchange exchange(group, {Bucket::single(0, "w", 10)},
                      Config::parse("csc:density=1,momentum=0,values=f16"));
    double arrived = 0;
    for (int step = 0; step < 5; ++step) {
      std::vector<float> g(10, step == 0 ? 1e5f : 0.0f);
      exchange.submit(0, std::span(g));
      ASSERT_FALSE(exchange.finish().skipped);
      arrived += g[3];
    }
    EXPECT_NEAR(arrived, 1e5, 100);
  });
}

TEST(Csc, SelectionByThePreviousNormsNeedsOneRound) {
  const Bucket bucket = Bucket::single(0, "w", 1 << 22);
  const auto current = make_compressor(Config::parse("csc"), bucket, {0, 4});
  const auto previous = make_compressor(Config::parse("csc:select=previous"), bucket, {0, 4});
  EXPECT_EQ(current->rounds(), 2);
  EXPECT_EQ(current->leg(0, 0).bytes, 128u * 4);         // chunks of 32768
  EXPECT_EQ(current->leg(0, 1).bytes, 13u * 32768 * 4);  // a tenth of them
  EXPECT_EQ(previous->rounds(), 1);
  EXPECT_EQ(previous->leg(0, 0).bytes, 128u * 4 + 13u * 32768 * 4);
}

}  // namespace
}  // namespace thinwire
