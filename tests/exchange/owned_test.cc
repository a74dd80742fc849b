// owned_test.cc: residuals of owners (split) under another exchange or number of workers: the total
// that is kept stays the same.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tests/laws.h"
#include "thinwire/exchange/stripe_state.h"

namespace thinwire::owned {

using namespace testing;

static StateEntry residual_of(std::size_t count) {
  return {Share::summed, std::vector<float>(count, 1.0f), 0, true};
}

TEST(Owned, NamesTellParameterAndPlace) {
  const auto place = [](const std::string& name, std::size_t count) -> std::string {
    const auto owned = owned_residual(name, residual_of(count));
    return owned ? owned->parameter + " " + std::to_string(owned->from) : "none";
  };
  EXPECT_EQ(place("w/owner/v", 4), "w 0");
  EXPECT_EQ(place("w[64:68]/owner/v", 4), "w 64");
  EXPECT_EQ(place("w/v", 4), "none");
  EXPECT_EQ(place("w/owner/u", 4), "none");
  // Brackets that belong to the parameter's name.
  EXPECT_EQ(place("w[3]/owner/v", 4), "w[3] 0");
  EXPECT_EQ(place("w[0:2]/owner/v", 4), "w[0:2] 0");
  EXPECT_EQ(place("w[0-4]/owner/v", 4), "w[0-4] 0");
  EXPECT_EQ(place("w[0:9][4:8]/owner/v", 4), "w[0:9] 4");
}

TEST(Owned, FoldingMakesAPlaceWhereThereIsNone) {
  State state = {{"w[2:4]/owner/v", residual_of(2)}, {"w[4:5]/owner/v", residual_of(1)}};
  fold_owned(state, {Bucket::single(0, "w", 6)}, 3);
  ASSERT_EQ(state.size(), 1u);
  EXPECT_EQ(state.at("w/v").values, (std::vector<float>{0, 0, 3, 3, 3, 0}));
}

// Four steps by split, then the states are folded and continue by gather, which sends
// the whole residual.
TEST(Owned, ResidualsGoOnUnderAnotherExchange) {
  const std::vector<Bucket> buckets = {Bucket{0, {{"a", 0, 300, {30, 10}}, {"b", 300, 9, {}}}},
                                       Bucket{1, {{"c", 0, 77, {}}}}};
  run_local(3, [&](Group& group) {
    std::vector<std::vector<double>> lacking = {std::vector<double>(309), std::vector<double>(77)};
    State state;
    {
      Exchange split(group, buckets, Config::parse("topk:density=0.1"),
                     {.kind = ExchangeKind::parse("split")});
      for (std::uint64_t number = 0; number < 4; ++number) {
        Model model = model_gradient(buckets, Shape::normal, seed_of(group, number));
        for (std::size_t b = 0; b < model.size(); ++b) {
          for (std::size_t i = 0; i < model[b].size(); ++i) lacking[b][i] += model[b][i];
        }
        take_step(split, model, 0);
        for (std::size_t b = 0; b < model.size(); ++b) {
          for (std::size_t i = 0; i < model[b].size(); ++i) lacking[b][i] -= model[b][i];
        }
      }
      state = state_of(split);
    }
    fold_owned(state, buckets, group.size());
    for (const char* found_anew :
         {"bucket0/density", "bucket0/threshold0", "bucket1/density", "bucket1/threshold0"})
      state[found_anew] = {Share::local, {}, 0, false};
    Exchange gather(group, buckets, Config::parse("topk:density=1,values=f32"));
    StateLoader loader(state);
    gather.visit_state(loader);
    Model last = model_gradient(buckets, Shape::zero, 0);
    take_step(gather, last, 0);
    for (std::size_t b = 0; b < last.size(); ++b) {
      std::vector<float> left(last[b].size());
      for (std::size_t i = 0; i < left.size(); ++i)
        left[i] = static_cast<float>(lacking[b][i] - static_cast<double>(last[b][i]));
      group.all_reduce(std::as_writable_bytes(std::span(left)), DType::f32, ReduceOp::sum, {})
          .wait();
      for (const float value : left) ASSERT_NEAR(value, 0, 1e-4);
    }
  });
}

}  // namespace thinwire::owned
