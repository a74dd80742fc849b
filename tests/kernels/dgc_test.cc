// dgc_test.cc: the DGC pass: its meaning, and the same bits on every vector width.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/dgc.h"

#include <algorithm>

#include "tests/kernels/kernel_testing.h"

namespace thinwire {
namespace {

constexpr float inf = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();

using Function = decltype(&dgc_pass);

// The arrays of one call, between guards.
struct DgcArrays {
  DgcArrays(std::span<const float> g0, std::span<const float> u0, std::span<const float> v0,
            std::size_t offset)
      : g(g0, offset),
        u(u0, (offset + 1) % 4),
        v(v0, (offset + 2) % 4),
        index(std::vector<std::uint32_t>(g0.size()), offset),
        value(std::vector<float>(g0.size()), (offset + 3) % 4),
        velocity(std::vector<float>(g0.size()), (offset + 1) % 4) {}

  DgcTally run(Function pass, const DgcRule& rule, std::size_t first) {
    tally = pass(rule, g.data(), u.data(), v.data(), g.view().size(),
                 static_cast<std::uint32_t>(first), {index.data(), value.data(), velocity.data()});
    return tally;
  }

  bool intact() const {
    return g.intact() && u.intact() && v.intact() && index.intact() && value.intact() &&
           velocity.intact();
  }

  Guarded<float> g, u, v;
  Guarded<std::uint32_t> index;
  Guarded<float> value, velocity;
  DgcTally tally;
};

void expect_same(const DgcArrays& a, const DgcArrays& b) {
  ASSERT_EQ(a.tally.picked, b.tally.picked);
  ASSERT_EQ(a.tally.finite, b.tally.finite);
  const std::size_t n = a.tally.picked;
  ASSERT_TRUE(same_bits(a.g.view(), b.g.view()));
  ASSERT_TRUE(same_bits(a.u.view(), b.u.view()));
  ASSERT_TRUE(same_bits(a.v.view(), b.v.view()));
  ASSERT_TRUE(same_bits(a.index.view().first(n), b.index.view().first(n)));
  ASSERT_TRUE(same_bits(a.value.view().first(n), b.value.view().first(n)));
  ASSERT_TRUE(same_bits(a.velocity.view().first(n), b.velocity.view().first(n)));
  ASSERT_TRUE(a.intact() && b.intact());
}

class Dgc : public EachTarget {};
THINWIRE_EACH_TARGET(Dgc);

constexpr Accumulate all_modes[] = {Accumulate::none, Accumulate::residual, Accumulate::momentum,
                                    Accumulate::nesterov, Accumulate::pool};

TEST_P(Dgc, FastEqualsReference) {
  for_all_shapes([](Content content, std::size_t size, std::size_t offset) {
    const auto g = make_content(content, 1, size);
    // u and v are finite in a real run. Here too, but as extreme as g if g is finite.
    const auto plain = content >= Content::nan_first ? Content::normal : content;
    const auto u = make_content(plain, 2, size), v = make_content(plain, 3, size);
    for (const Accumulate mode : all_modes) {
      for (const float threshold : {0.5f, 2.5f, 1e-40f, inf}) {
        // With m at most 1/2 a pool's share never changes.
        const float m = mode < Accumulate::pool ? 0.5f : 0.9f;
        const DgcRule rule{mode, m, 0.75f, threshold};
        DgcArrays fast(g, u, v, offset), slow(g, u, v, offset);
        fast.run(dgc_pass, rule, 0xfffffff0u);
        slow.run(dgc_pass_reference, rule, 0xfffffff0u);
        ASSERT_NO_FATAL_FAILURE(expect_same(fast, slow)) << "mode " << static_cast<int>(mode);
      }
    }
  });
}

TEST_P(Dgc, TiesPassAtEveryPosition) {
  for (std::size_t at = 0; at < 130; ++at) {
    std::vector<float> g(130, std::nextafter(0.5f, 0.0f)), zero(130);
    g[at] = -0.5f;
    DgcArrays arrays(g, zero, zero, at % 4);
    const DgcTally tally = arrays.run(dgc_pass, {Accumulate::momentum, 0.9f, 1, 0.5f}, 7);
    ASSERT_EQ(tally.picked, 1u);
    ASSERT_EQ(arrays.index.view()[0], at + 7);
    ASSERT_EQ(arrays.value.view()[0], -0.5f);
  }
}

TEST_P(Dgc, NonFiniteAtEveryPositionIsReportedAndLeavesStateAlone) {
  for (std::size_t at = 0; at < 130; ++at) {
    for (const float bad : {nan, -nan, inf, -inf, 2 * gradient_limit}) {
      for (const Accumulate mode : all_modes) {
        auto g = make_content(Content::normal, 4, 130);
        const auto u = make_content(Content::normal, 5, 130);
        const auto v = make_content(Content::normal, 6, 130);
        g[at] = bad;
        DgcArrays arrays(g, u, v, 0);
        ASSERT_FALSE(arrays.run(dgc_pass, {mode, 0.9f, 1, 1.0f}, 0).finite);
        ASSERT_EQ(arrays.u.view()[at], u[at]);
        ASSERT_EQ(arrays.v.view()[at], v[at]);
        const auto picked = arrays.index.view().first(arrays.tally.picked);
        ASSERT_EQ(std::count(picked.begin(), picked.end(), at), 0);
      }
    }
  }
}

TEST_P(Dgc, NullPointersWhereNothingIsTouched) {
  const auto g = make_content(Content::normal, 8, 1003);
  std::vector<std::uint32_t> index(g.size());
  std::vector<float> value(g.size()), v(g.size());
  const Picked out{index.data(), value.data(), nullptr};
  DgcRule rule{Accumulate::none, 0.9f, 1, 1.0f};
  for (const Function pass : {&dgc_pass, &dgc_pass_reference}) {
    EXPECT_GT(pass(rule, g.data(), nullptr, nullptr, g.size(), 0, out).picked, 0u);
    EXPECT_EQ(pass(rule, nullptr, nullptr, nullptr, 0, 0, {}).picked, 0u);
  }
  rule.accumulate = Accumulate::residual;
  EXPECT_GT(dgc_pass(rule, g.data(), nullptr, v.data(), g.size(), 0, out).picked, 0u);
}

// More elements than a float can count, in blocks, as a compressor calls it.
TEST(DgcLarge, BlocksBeyondTwoToThe24) {
  const std::size_t count = (std::size_t{1} << 24) + 3 * dgc_block + 5;
  std::vector<float> g(count), u(count), v(count), u_slow(count), v_slow(count);
  for (std::size_t i = 0; i < count; ++i) g[i] = random_unit(9, i) - 0.5f;
  std::vector<std::uint32_t> index(dgc_block), index_slow(dgc_block);
  std::vector<float> value(dgc_block), velocity(dgc_block);
  const DgcRule rule{Accumulate::momentum, 0.9f, 1, 0.4995f};
  std::size_t picked = 0, last = 0;
  for (std::size_t i = 0; i < count; i += dgc_block) {
    const std::size_t size = std::min(dgc_block, count - i);
    const auto first = static_cast<std::uint32_t>(i);
    const DgcTally fast = dgc_pass(rule, &g[i], &u[i], &v[i], size, first,
                                   {index.data(), value.data(), velocity.data()});
    const DgcTally slow = dgc_pass_reference(rule, &g[i], &u_slow[i], &v_slow[i], size, first,
                                             {index_slow.data(), value.data(), velocity.data()});
    ASSERT_EQ(fast.picked, slow.picked);
    ASSERT_TRUE(std::equal(index.begin(), index.begin() + static_cast<long>(fast.picked),
                           index_slow.begin()));
    picked += fast.picked;
    if (fast.picked > 0) last = index[fast.picked - 1];
  }
  EXPECT_TRUE(same_bits<float>(u, u_slow) && same_bits<float>(v, v_slow));
  EXPECT_NEAR(static_cast<double>(picked) / static_cast<double>(count), 1e-3, 1e-4);
  EXPECT_GT(last, std::size_t{1} << 24);
}

// The pass by hand, one line per element: the input and the expected output.
struct Line {
  float g, u, v;         // before
  float u_next, v_next;  // kept
  bool taken;
  float value, velocity;
};

void expect_lines(const DgcRule& rule, const std::vector<Line>& lines) {
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const Line& line = lines[i];
    float u = line.u, v = line.v, value = 0, velocity = 0;
    std::uint32_t index = 0;
    const DgcTally tally =
        dgc_pass_reference(rule, &line.g, &u, &v, 1, 5, {&index, &value, &velocity});
    EXPECT_TRUE(tally.finite);
    EXPECT_EQ(tally.picked, line.taken ? 1u : 0u) << i;
    EXPECT_EQ(u, line.u_next) << i;
    EXPECT_EQ(v, line.v_next) << i;
    EXPECT_EQ(index, line.taken ? 5u : 0u) << i;
    EXPECT_EQ(value, line.value) << i;
    EXPECT_EQ(velocity, line.velocity) << i;
  }
}

TEST(DgcMeaning, Momentum) {  // scale 1/2, m 1/2: u' = u/2 + g/2, v' = v + u'
  expect_lines({Accumulate::momentum, 0.5f, 0.5f, 4},
               {{2, 4, -1, 3, 2, false, 0, 0},    // u' = 2 + 1, v' = -1 + 3
                {2, 4, 1, 0, 0, true, 4, 3},      // v' = 1 + 3 ties with 4: sent and masked
                {-8, 0, -1, 0, 0, true, -5, -4},  // by magnitude
                {0, 0, 0, 0, 0, false, 0, 0}});
}

TEST(DgcMeaning, Nesterov) {  // u' = (u + g)/2, v' = v + u' + g
  expect_lines({Accumulate::nesterov, 0.5f, 1, 4},
               {{1, 1, -1, 1, 1, false, 0, 0}, {2, 0, 2, 0, 0, true, 5, 1}});
}

// m 3/4: the pool is v/4 + 3u/4. The shares that stay are powers of two here.
TEST(DgcMeaning, Pool) {
  expect_lines({Accumulate::pool, 0.75f, 1, 100},
               {{2, 4, 0, 5, 5, false, 0, 0},    // sent a step ago: 3/4 of 3 + 2 stay
                {4, 4, 4, 6, 14, false, 0, 0},   // a quarter was due, and more of 4 + 4 is
                {1, 0, 12, 0, 16, false, 0, 0},  // all was due
                {2, 8, -12, 5, 5, false, 0, 0},  // what opposes momentum was not due
                {-3, 4, 0, 0, 0, false, 0, 0},
                {4, 0, 0, 4, 4, false, 0, 0}});
  expect_lines({Accumulate::pool, 0.75f, 1, 5}, {{2, 4, 0, 0, 0, true, 5, 5}});
}

TEST(DgcMeaning, ResidualAndNone) {
  expect_lines({Accumulate::residual, 0.5f, 0.5f, 4},
               {{2, 9, 1, 9, 2, false, 0, 0}, {8, 9, 1, 9, 0, true, 5, 0}});
  expect_lines({Accumulate::none, 0.5f, 0.5f, 4},
               {{2, 9, 7, 9, 7, false, 0, 0}, {8, 9, 7, 9, 7, true, 4, 0}});
}

TEST(DgcMeaning, MinusZeroIsKeptAsSuch) {
  float g = -0.0f, u = -0.0f, v = -0.0f;
  (void)dgc_pass_reference({Accumulate::momentum, 0.5f, 1, 1}, &g, &u, &v, 1, 0, {});
  EXPECT_TRUE(std::signbit(u) && std::signbit(v));
}

TEST(DgcMeaning, OverflowOfTheSumIsNotFinite) {
  float g = 3e38f, u = 0, v = 2e38f;
  const DgcTally tally =
      dgc_pass_reference({Accumulate::momentum, 0.5f, 1, 1}, &g, &u, &v, 1, 0, {});
  EXPECT_FALSE(tally.finite);
  EXPECT_EQ(tally.picked, 0u);
  EXPECT_EQ(u, 0);
  EXPECT_EQ(v, 2e38f);
}

// Sent plus kept equals given, and sent values appear nowhere else.
TEST(DgcMeaning, Conserves) {
  const std::size_t count = 5000;
  const auto g = make_content(Content::normal, 11, count);
  auto u = make_content(Content::normal, 12, count), v = make_content(Content::normal, 13, count);
  const auto u_old = u, v_old = v;
  std::vector<std::uint32_t> index(count);
  std::vector<float> value(count), velocity(count), sent(count), sent_velocity(count);
  const DgcRule rule{Accumulate::momentum, 0.9f, 0.5f, 2};
  const DgcTally tally = dgc_pass(rule, g.data(), u.data(), v.data(), count, 0,
                                  {index.data(), value.data(), velocity.data()});
  ASSERT_GT(tally.picked, 100u);
  ASSERT_LT(tally.picked, count / 2);
  for (std::size_t k = 0; k < tally.picked; ++k) {
    ASSERT_TRUE(k == 0 || index[k] > index[k - 1]);
    sent[index[k]] = value[k];
    sent_velocity[index[k]] = velocity[k];
    ASSERT_EQ(u[index[k]], 0);
    ASSERT_EQ(v[index[k]], 0);
  }
  for (std::size_t i = 0; i < count; ++i) {
    const float u_next = 0.9f * u_old[i] + 0.5f * g[i];
    ASSERT_EQ(u[i] + sent_velocity[i], u_next);
    ASSERT_EQ(v[i] + sent[i], v_old[i] + u_next);
    ASSERT_LT(std::fabs(v[i]), 2);
  }
}

}  // namespace
}  // namespace thinwire
