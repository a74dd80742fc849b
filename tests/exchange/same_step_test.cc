// same_step_test.cc: ranks that begin at different steps (they loaded different checkpoints, or
// only some loaded one) get an error before anything is exchanged.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>

#include "tests/laws.h"

namespace thinwire::same_step {

using namespace testing;

static const std::vector<Bucket> one = {Bucket{0, {{"w", 0, 640, {20, 32}}}}};

// The state of every rank after `steps` steps.
static std::vector<State> trained(const Config& config, int ranks, std::uint64_t steps) {
  std::vector<State> states(static_cast<std::size_t>(ranks));
  run_local(ranks, [&](Group& group) {
    Exchange exchange(group, one, config);
    for (std::uint64_t step = 0; step < steps; ++step) {
      Model model = model_gradient(one, Shape::normal, seed_of(group, step));
      take_step(exchange, model, 0);
    }
    states[static_cast<std::size_t>(group.rank())] = state_of(exchange);
  });
  return states;
}

static void load(Exchange& exchange, const State& state) {
  StateLoader loader(state);
  exchange.visit_state(loader);
}

static std::vector<std::byte> bytes_of_state(Exchange& exchange) {
  return serialize(state_of(exchange));
}

TEST(SameStep, OfDifferentCheckpointsIsAnErrorThatNamesRanksAndSteps) {
  for (const char* text : {"randomk", "csc:select=previous", "csc", "dense", "powersgd:warmup=4",
                           "dgc", "terngrad:travel=sum", "signum:travel=sum"}) {
    const Config config = Config::parse(text);
    const auto early = trained(config, 3, 2), late = trained(config, 3, 5);
    run_local(3, [&](Group& group) {
      const auto rank = static_cast<std::size_t>(group.rank());
      Exchange exchange(group, one, config);
      load(exchange, rank == 2 ? early[rank] : late[rank]);
      const auto before = bytes_of_state(exchange);
      Model model = model_gradient(one, Shape::normal, seed_of(group, 9));
      const std::string error = error_of([&] { take_step(exchange, model, 0); });
      EXPECT_NE(error.find("rank 0 begins at step 5, rank 2 at step 2"), std::string::npos)
          << text << ": " << error;
      EXPECT_EQ(bytes_of_state(exchange), before) << text;  // nothing was taken in
    });
  }
}

TEST(SameStep, OfACheckpointOnOneRankOnlyIsAnError) {
  const Config config = Config::parse("randomk");
  const auto states = trained(config, 3, 3);
  run_local(3, [&](Group& group) {
    Exchange exchange(group, one, config);
    if (group.rank() == 1) load(exchange, states[1]);
    Model model = model_gradient(one, Shape::normal, seed_of(group, 9));
    const std::string error = error_of([&] { take_step(exchange, model, 0); });
    EXPECT_NE(error.find("rank 0 begins at step 0, rank 1 at step 3"), std::string::npos) << error;
  });
}

// Loads into an exchange that has already taken steps.
TEST(SameStep, IsAgreedOnAgainAfterALoadInMidRun) {
  const Config config = Config::parse("randomk");
  const auto early = trained(config, 2, 2), late = trained(config, 2, 5);
  for (const bool same : {true, false}) {
    run_local(2, [&](Group& group) {
      const auto rank = static_cast<std::size_t>(group.rank());
      Exchange exchange(group, one, config);
      Model model = model_gradient(one, Shape::normal, seed_of(group, 0));
      take_step(exchange, model, 0);
      load(exchange, same || rank == 0 ? late[rank] : early[rank]);
      const std::string error = error_of([&] { take_step(exchange, model, 0); });
      EXPECT_EQ(error.find("step 5") == std::string::npos, same) << error;
    });
  }
}

TEST(SameStep, OfABadCheckpointIsRefused) {
  run_local(1, [&](Group& group) {
    Exchange exchange(group, one, Config::parse("randomk"));
    const auto before = bytes_of_state(exchange);
    for (const double step : {-1.0, std::nan(""), HUGE_VAL}) {
      const State state = {{"exchange/step", {Share::replicated, {}, step, false}}};
      EXPECT_NE(error_of([&] { load(exchange, state); }).find("exchange/step"), std::string::npos);
    }
    EXPECT_EQ(bytes_of_state(exchange), before);
  });
}

// Beyond 2^31, and when only the upper half differs.
TEST(SameStep, CountsFar) {
  constexpr double far = 8589934593.0, top_of_low_half = 2147483648.0;
  for (const double other : {0.0, far - 1, far + top_of_low_half, far}) {
    run_local(2, [&](Group& group) {
      Exchange exchange(group, one, Config::parse("randomk"));
      State state = {{"exchange/step", {Share::replicated, {}, group.rank() ? other : far}}};
      load(exchange, state);
      Model model = model_gradient(one, Shape::normal, 1);
      EXPECT_EQ(error_of([&] { take_step(exchange, model, 0); }).empty(), other == far);
    });
  }
}

}  // namespace thinwire::same_step
