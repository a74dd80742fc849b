// limit_test.cc: which elements are accepted, the same on every vector width, and how to undo them.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/limit.h"

#include "tests/kernels/kernel_testing.h"
#include "thinwire/kernels/dgc.h"

namespace thinwire {
namespace {

constexpr float infinite = std::numeric_limits<float>::infinity();
constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();

class Limit : public EachTarget {};
THINWIRE_EACH_TARGET(Limit);

TEST_P(Limit, FastEqualsReference) {
  for_all_shapes([](Content content, std::size_t size, std::size_t offset) {
    Guarded<float> x(make_content(content, 1, size), offset);
    ASSERT_EQ(all_within_limit(x.data(), size), all_within_limit_reference(x.data(), size));
  });
}

TEST_P(Limit, EveryPositionCounts) {
  for (std::size_t at = 0; at < 150; ++at) {
    std::vector<float> x(150, -gradient_limit);
    EXPECT_TRUE(all_within_limit(x.data(), x.size()));
    for (const float bad : {not_a_number, -not_a_number, infinite, -infinite,
                            std::nextafter(gradient_limit, infinite)}) {
      x[at] = bad;
      EXPECT_FALSE(all_within_limit(x.data(), x.size()));
    }
  }
}

// Each memory's pass adds, take_out() undoes it: for ordinary gradients v is restored to rounding,
// and huge ones never leave more than twice what was there.
TEST(LimitValue, TakeOutIsTheWayBack) {
  constexpr std::size_t count = 1000;
  const auto before = make_content(Content::normal, 3, count);
  for (const Accumulate kind : {Accumulate::residual, Accumulate::momentum, Accumulate::nesterov}) {
    for (const float size : {1.0f, 1e-6f, 1e6f, 1e17f}) {
      auto g = make_content(Content::normal, 1, count), u = make_content(Content::normal, 2, count);
      auto v = before;
      for (float& value : g) value *= size;
      g[7] = not_a_number;
      g[8] = 4 * gradient_limit;
      std::vector<std::uint32_t> index(count);
      std::vector<float> value(count), velocity(count);
      const DgcTally tally = dgc_pass({kind, 0.9f, 0.5f, infinite}, g.data(), u.data(), v.data(),
                                      count, 0, {index.data(), value.data(), velocity.data()});
      ASSERT_FALSE(tally.finite);
      take_out({kind, 0.9f}, 0.5f, g.data(), nullptr, u.data(), v.data(), count);
      for (std::size_t i = 0; i < count; ++i) {
        const double rounding = 1e-6 * (1 + std::abs(g[i]));
        if (i == 7 || i == 8) {
          EXPECT_EQ(v[i], before[i]);
        } else if (size < 1e17f) {
          EXPECT_NEAR(v[i], before[i], rounding);
        }
        EXPECT_LE(std::abs(v[i]), 2.001 * std::abs(before[i]));
        if (kind != Accumulate::residual) {
          EXPECT_EQ(u[i], 0.0f);
        }
      }
    }
  }
}

// A pool has its size back, and its parts their proportion.
TEST(LimitValue, TakeOutLeavesThePoolAsItWas) {
  constexpr std::size_t count = 1000;
  constexpr float m = 0.9f;
  const auto u_before = make_content(Content::normal, 2, count);
  const auto v_before = make_content(Content::normal, 3, count);
  const auto pool = [&](const auto& u, const auto& v, std::size_t i) {
    return (1 - m) * v[i] + m * u[i];
  };
  constexpr Accumulate kind = Accumulate::pool;
  for (const float size : {1.0f, 1e-6f, 1e6f, 1e17f}) {
    auto g = make_content(Content::normal, 1, count), u = u_before, v = v_before;
    for (float& value : g) value *= size;
    g[7] = not_a_number;
    g[8] = 4 * gradient_limit;
    u[9] = v[9] = 0;
    g[10] = -pool(u, v, 10) / 0.5f;  // an empty pool
    std::vector<std::uint32_t> index(count);
    std::vector<float> value(count), velocity(count);
    ASSERT_FALSE(dgc_pass({kind, m, 0.5f, infinite}, g.data(), u.data(), v.data(), count, 0,
                          {index.data(), value.data(), velocity.data()})
                     .finite);
    const auto u_after = u, v_after = v;
    take_out({kind, m}, 0.5f, g.data(), nullptr, u.data(), v.data(), count);
    EXPECT_EQ(u[7], u_before[7]);
    EXPECT_EQ(v[8], v_before[8]);
    EXPECT_NEAR(pool(u, v, 9), 0, 1e-5);
    EXPECT_NEAR(pool(u, v, 10), pool(u_before, v_before, 10), 1e-5);
    for (std::size_t i = 0; i < count; ++i) {
      const float was = i == 9 ? 0 : pool(u_before, v_before, i);
      EXPECT_LE(std::abs(pool(u, v, i)), 2.001 * std::abs(was) + 1e-6) << i;
      if (size == 1e17f || i == 7 || i == 8) continue;
      EXPECT_NEAR(pool(u, v, i), was, 3e-6 * (1 + std::abs(g[i]))) << i;
      if (size == 1 && i > 10 && std::abs(pool(u_after, v_after, i)) > 0.1) {
        EXPECT_NEAR(u[i] * v_after[i], u_after[i] * v[i],
                    1e-4 * (1 + std::abs(u_after[i] * v_after[i])));
      }
    }
  }
}

// ... also if v lacks what was sent, of any size.
TEST(LimitValue, TakeOutAddsWhatWasSent) {
  constexpr std::size_t count = 1000;
  const auto before = make_content(Content::normal, 3, count);
  for (const float size : {1.0f, 1e17f}) {
    for (const float part : {1.0f, 0.01f, 3.0f}) {
      auto g = make_content(Content::normal, 1, count);
      const auto noise = make_content(Content::normal, 2, count);
      auto v = before, sent = before;
      for (std::size_t i = 0; i < count; ++i) {
        g[i] *= i % 2 ? size : 1;
        sent[i] = part * size * noise[i];
        const float x = v[i] + g[i];
        v[i] = x - sent[i];
      }
      take_out({Accumulate::residual}, 1, g.data(), sent.data(), nullptr, v.data(), count);
      for (std::size_t i = 0; i < count; ++i) {
        if (size == 1) {
          EXPECT_NEAR(v[i], before[i], 1e-5);
        }
        EXPECT_LE(std::abs(v[i]), 2.001 * std::abs(before[i]));
      }
    }
  }
}

TEST(LimitValue, WhatIsBeyondIsNotAdded) {
  const std::vector<float> g = {1, not_a_number, -infinite, 3e38f, gradient_limit};
  std::vector<float> v(5, 2.0f);
  add_within_limit(g.data(), v.data(), v.size());
  EXPECT_EQ(v, (std::vector<float>{3, 2, 2, 2, gradient_limit}));
}

}  // namespace
}  // namespace thinwire
