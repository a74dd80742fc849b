// powersgd_test.cc: what the laws of all schemes do not say about PowerSGD.
// SPDX-License-Identifier: Apache-2.0
#include "tests/exchange/stalls.h"
#include "thinwire/compress/basis.h"
#include "thinwire/core/crc32c.h"
#include "thinwire/core/parallel.h"

namespace thinwire {
namespace {

using namespace testing;

const Bucket one_matrix{0, {{"w", 0, 30 * 50, {30, 50}}}};

// The sum of this many products u v^T.
std::vector<float> low_rank_gradient(std::size_t rank, std::uint64_t seed) {
  std::vector<float> values(30 * 50);
  for (std::size_t k = 0; k < rank; ++k) {
    const auto u = gradient(Shape::normal, 30, seed + 2 * k),
               v = gradient(Shape::normal, 50, seed + 2 * k + 1);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] += u[i / 50] * v[i % 50];
  }
  return values;
}

// A gradient of rank r arrives exactly in one step, whatever Q was.
TEST(PowerSgd, GradientsOfThatRankAreExact) {
  run_local(3, [](Group& group) {
    Exchange exchange(group, {one_matrix}, Config::parse("powersgd:rank=2"));
    for (std::uint64_t step = 0; step < 3; ++step) {
      Model model = {low_rank_gradient(2, 10)};
      const auto expected = model[0];
      take_step(exchange, model, 0);
      for (std::size_t i = 0; i < expected.size(); ++i) ASSERT_NEAR(model[0][i], expected[i], 1e-4);
    }
  });
}

// Warm start finds the leading directions: for a constant gradient the error shrinks to the best
// possible. Feedback does not help here: one step's average is compared with the gradient, with the
// error cleared.
TEST(PowerSgd, WarmStartIteratesTowardsTheBestSubspace) {
  run_local(1, [](Group& group) {
    Exchange exchange(group, {one_matrix}, Config::parse("powersgd:rank=2"));
    auto g = low_rank_gradient(2, 10);
    const auto noise = gradient(Shape::normal, g.size(), 5);
    for (std::size_t i = 0; i < g.size(); ++i) g[i] += 0.3f * noise[i];
    double first = 0, last = 0;
    for (int step = 0; step < 10; ++step) {
      Model model = {g};
      take_step(exchange, model, 0);
      for (std::size_t i = 0; i < g.size(); ++i) model[0][i] -= g[i];
      last = norm(model[0]);
      if (step == 0) first = last;
      State state = state_of(exchange);
      std::fill(state.at("w/v").values.begin(), state.at("w/v").values.end(), 0.0f);
      StateLoader loader(state);
      exchange.visit_state(loader);
    }
    EXPECT_LT(last, 0.99 * first);
    EXPECT_LT(last, 0.3 * norm(noise));
  });
}

// While a layer's gradient is zero, the result is zero, not NaN. The subspace recovers when the
// gradient returns.
TEST(PowerSgd, ZeroGradientsDoNotKillTheSubspace) {
  for (const char* options : {"powersgd:rank=2", "powersgd:rank=2,warm_start=off"}) {
    run_local(2, [&](Group& group) {
      Exchange exchange(group, {one_matrix}, Config::parse(options));
      for (int step = 0; step < 3; ++step) {
        Model model = {std::vector<float>(30 * 50)};
        take_step(exchange, model, 0);
        for (const float value : model[0]) ASSERT_EQ(value, 0.0f);
      }
      Model model = {low_rank_gradient(2, 10)};
      const auto expected = model[0];
      take_step(exchange, model, 0);
      for (std::size_t i = 0; i < expected.size(); ++i) ASSERT_NEAR(model[0][i], expected[i], 1e-4);
    });
  }
}

// The first Q, and one that is drawn anew, follow from the seed, the name and the step.
TEST(PowerSgd, DrawsFollowFromSeedNameAndStep) {
  run_local(1, [](Group& group) {
    Exchange exchange(group, {one_matrix}, Config::parse("powersgd:rank=2,seed=5"));
    const std::string name = "w";
    const std::uint64_t stream = random_at(5, crc32c(std::as_bytes(std::span(name))));
    for (std::uint64_t step = 0; step < 3; ++step) {
      std::vector<float> expected(50 * 2);
      const Basis basis{expected.data(), 50, 2, 1, 50};
      draw(basis, random_at(stream, step));
      orthonormalise(basis, std::nullopt);
      const std::vector<float> q = state_of(exchange).at("w/q").values;
      ASSERT_EQ(q.size(), expected.size());
      for (std::size_t i = 0; i < q.size(); ++i) ASSERT_NEAR(q[i], expected[i], 1e-6) << step;
      Model model = {std::vector<float>(30 * 50)};  // nothing to start the next one from
      take_step(exchange, model, 0);
    }
  });
}

// An error so large that its products overflow voids the step.
TEST(PowerSgd, ProductsThatOverflowVoidTheStep) {
  run_local(1, [](Group& group) {
    Exchange exchange(group, {one_matrix}, Config::parse("powersgd:rank=2"));
    State state = state_of(exchange);
    std::fill(state.at("w/v").values.begin(), state.at("w/v").values.end(), 1e38f);
    StateLoader loader(state);
    exchange.visit_state(loader);
    Model model = {std::vector<float>(30 * 50)};
    EXPECT_TRUE(take_step(exchange, model, 0).skipped);
  });
}

// P has the scale of the gradient, so neither tiny nor large gradients leave the range of f32.
TEST(PowerSgd, AnyScaleOfGradients) {
  for (const float scale : {1e-25f, 1e25f}) {
    run_local(2, [&](Group& group) {
      Exchange exchange(group, {one_matrix}, Config::parse("powersgd:rank=2"));
      for (int step = 0; step < 4; ++step) {
        Model model = {low_rank_gradient(2, 10)};
        const auto expected = model[0];
        for (float& value : model[0]) value *= scale;
        ASSERT_FALSE(take_step(exchange, model, 0).skipped);
        for (std::size_t i = 0; i < expected.size(); ++i)
          ASSERT_NEAR(model[0][i] / scale, expected[i], 1e-4);
      }
    });
  }
}

// Each matrix separately: two of equal shape, one a thousand times larger.
TEST(PowerSgd, MatricesOfOneShapeDoNotMix) {
  const Bucket two{0, {{"a", 0, 1500, {30, 50}}, {"b", 1500, 1500, {30, 50}}}};
  run_local(1, [&](Group& group) {
    Exchange exchange(group, {two}, Config::parse("powersgd:rank=1"));
    auto g = low_rank_gradient(1, 10);
    for (const float value : low_rank_gradient(1, 20)) g.push_back(1000 * value);
    Model model = {g};
    take_step(exchange, model, 0);
    for (std::size_t i = 0; i < g.size(); ++i)
      ASSERT_NEAR(model[0][i], g[i], i < 1500 ? 1e-5 : 1e-2);
  });
}

// With its own error, a worker's residual is orthogonal to everything that was sent. With the error
// of the average it is not, unless the worker is alone.
TEST(PowerSgd, ErrorIsOfTheAverageOrOfTheWorkersOwn) {
  for (const std::string error : {"average", "local"}) {
    run_local(2, [&](Group& group) {
      Exchange exchange(group, {one_matrix}, Config::parse("powersgd:rank=2,error=" + error));
      Model model = model_gradient({one_matrix}, Shape::normal, seed_of(group, 0));
      const auto given = model[0];
      take_step(exchange, model, 0);
      const std::vector<float> kept = state_of(exchange).at("w/v").values;
      double largest = 0;
      for (std::size_t a = 0; a < 50; ++a) {
        for (std::size_t b = 0; b < 50; ++b) {
          double product = 0;
          for (std::size_t i = 0; i < 30; ++i)
            product += double{model[0][i * 50 + a]} * kept[i * 50 + b];
          largest = std::max(largest, std::abs(product));
        }
      }
      if (error == "local") {
        EXPECT_LT(largest, 1e-5);
      } else {
        EXPECT_GT(largest, 0.1);
        for (std::size_t i = 0; i < given.size(); ++i)
          ASSERT_NEAR(kept[i], given[i] - model[0][i], 1e-6);
      }
    });
  }
}

TEST(PowerSgd, OnlyWhatPaysTravelsAsFactors) {
  const auto bytes = [](const char* options, std::vector<std::int64_t> shape, std::size_t count) {
    const Config config = Config::parse(std::string("powersgd:") + options);
    const Bucket bucket{0, {{"w", 0, count, std::move(shape)}}};
    return find_scheme("powersgd").bytes(Options(config, find_scheme("powersgd").options), bucket);
  };
  EXPECT_EQ(bytes("rank=2", {40, 10, 5}, 2000), (40 + 50) * 2 * 4u);
  EXPECT_EQ(bytes("rank=2", {2000}, 2000), 2000 * 4u);
  EXPECT_EQ(bytes("rank=8", {10, 10}, 100), 100 * 4u);
  EXPECT_EQ(bytes("rank=2,rate=2.5", {10, 10}, 100), 100 * 4u);
  EXPECT_EQ(bytes("rank=2,rate=2.4", {10, 10}, 100), 40 * 4u);
  EXPECT_EQ(bytes("rank=9,rate=1", {2, 100}, 200), 200 * 4u);
}

TEST(PowerSgd, WarmupIsTheMean) {
  run_local(3, [](Group& group) {
    Exchange dense(group, {one_matrix}, Config::parse("dense"));
    Exchange warm(group, {one_matrix}, Config::parse("powersgd:warmup=3"));
    for (std::uint64_t step = 0; step < 5; ++step) {
      Model a = model_gradient({one_matrix}, Shape::normal, seed_of(group, step)), b = a;
      take_step(dense, a, 0);
      take_step(warm, b, 0);
      ASSERT_EQ(same_bits(a[0], b[0]), step < 3);
    }
  });
  run_local(3, [](Group& group) {
    law_conservation(group, Config::parse("powersgd:warmup=20"), Shape::normal, 100);
    law_nan(group, Config::parse("powersgd:warmup=4"));
    law_resume(group, Config::parse("powersgd:warmup=12"));
  });
}

// Another bucket makes the step skipped after this bucket has finished it: Q is restored, and the
// error has the whole gradient.
TEST(PowerSgd, AVoidedStepRestoresQAndKeepsTheGradientOfSoundRanks) {
  const std::vector<Bucket> buckets = {one_matrix,
                                       {1, {{"x", 0, 6, {}}}},
                                       {2, {{"y", 0, 6, {}}}},
                                       {3, {{"z", 0, 6, {}}}},
                                       {4, {{"last", 0, 6, {}}}}};
  for (const char* options : {"powersgd:rank=2", "powersgd:rank=2,error=local"}) {
    run_local(2, [&](Group& group) {
      Exchange exchange(group, buckets, Config::parse(options));
      Model model = model_gradient(buckets, Shape::normal, seed_of(group, 0));
      take_step(exchange, model, 0);
      const State before = state_of(exchange);
      model = model_gradient(buckets, Shape::normal, seed_of(group, 1));
      const Model given = model;
      if (group.rank() == 1) model[4][3] = std::numeric_limits<float>::infinity();
      ASSERT_TRUE(take_step(exchange, model, 0).skipped);
      const State after = state_of(exchange);
      ASSERT_TRUE(same_bits(after.at("w/q").values, before.at("w/q").values));
      const bool bad = group.rank() == 1;
      for (std::size_t i = 0; i < given[0].size(); ++i) {
        const float waited = before.at("w/v").values[i];
        ASSERT_NEAR(after.at("w/v").values[i], bad ? waited : waited + given[0][i], 1e-5);
      }
      for (std::size_t i = 0; i < 6; ++i) {
        ASSERT_EQ(after.at("x/v").values[i], bad ? 0 : given[1][i]);
        ASSERT_EQ(after.at("last/v").values[i], bad ? 0 : given[4][i]);
      }
    });
  }
}

// Shapes determine what is sent, so ranks must agree on them before the first step.
TEST(PowerSgd, AnotherShapeIsAnError) {
  run_local(2, [](Group& group) {
    Bucket bucket = one_matrix;
    if (group.rank() == 1) bucket.parameters[0].shape = {50, 30};
    const std::string text =
        error_of([&] { Exchange exchange(group, {bucket}, Config::parse("powersgd")); });
    EXPECT_NE(text.find("rank 1 was set up otherwise"), std::string::npos) << text;
  });
}

TEST(PowerSgd, StallsDoNotChangeBits) {
  run_local(4, [](Group& group) { law_stalls(group, Config::parse("powersgd:rank=2")); });
}

// The same bits on any number of threads.
TEST(PowerSgd, ThreadsDoNotChangeBits) {
  const Bucket large{0, {{"w", 0, 300 * 1100, {300, 1100}}}};
  const auto run = [&](int count) {
    set_threads(count);
    std::vector<float> last;
    run_local(1, [&](Group& group) {
      Exchange exchange(group, {large}, Config::parse("powersgd:rank=3"));
      for (std::uint64_t step = 0; step < 2; ++step) {
        Model model = model_gradient({large}, Shape::normal, step);
        take_step(exchange, model, 0);
        last = model[0];
      }
    });
    set_threads(1);
    return last;
  };
  EXPECT_TRUE(same_bits(run(1), run(3)));
}

}  // namespace
}  // namespace thinwire
