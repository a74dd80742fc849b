// powersgd_test.cc: the passes over a matrix and its thin factors: their values, and one order of
// additions on every vector width.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/powersgd.h"

#include "tests/kernels/kernel_testing.h"
#include "thinwire/kernels/limit.h"

namespace thinwire {
namespace {

class PowerSgd : public EachTarget {};
THINWIRE_EACH_TARGET(PowerSgd);

constexpr std::size_t row_counts[] = {1, 2, 7, 9, 17, 131};
constexpr std::size_t col_counts[] = {1, 3, 15, 16, 17, 33, 100, 515, 1025};
constexpr std::size_t ranks[] = {1, 2, 3, 4, 5, 8, 9};

// Calls body(panel, offset) for matrices and for parts of wider ones.
template <typename Body>
void for_all_panels(Body body) {
  for (const std::size_t rows : row_counts) {
    for (const std::size_t cols : col_counts) {
      for (const std::size_t rank : ranks) {
        const Panel panel{rows, cols, cols + (rank % 2) * 5, rank};
        SCOPED_TRACE(std::to_string(rows) + " x " + std::to_string(cols) + ", rank " +
                     std::to_string(rank));
        body(panel, (rows + rank) % 4);
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

// As many floats as `rows` rows of the panel span.
std::vector<float> matrix(const Panel& panel, std::size_t rows, Content content,
                          std::uint64_t seed) {
  return make_content(content, seed, (rows - 1) * panel.stride + panel.cols);
}

TEST_P(PowerSgd, TakeEqualsReference) {
  for (const Content content : all_contents) {
#if defined(THINWIRE_SANITIZED)
    if (content != Content::normal) continue;  // what is accessed does not depend on what is there
#endif
    SCOPED_TRACE(static_cast<int>(content));
    for_all_panels([&](const Panel& panel, std::size_t offset) {
      Guarded<float> g(matrix(panel, panel.rows, content, 1), offset);
      const auto before = matrix(panel, panel.rows, Content::normal, 2);
      const auto q = matrix(panel, panel.rank, Content::normal, 3);
      const std::vector<float> blank(panel.rows * panel.rank);
      Guarded<float> fast(before, 3 - offset), slow(before, 3 - offset);
      Guarded<float> fast_p(blank, offset), slow_p(blank, offset);
      const bool finite = powersgd_take(panel, g.data(), fast.data(), q.data(), fast_p.data());
      ASSERT_EQ(finite,
                powersgd_take_reference(panel, g.data(), slow.data(), q.data(), slow_p.data()));
      ASSERT_TRUE(same_bits(fast.view(), slow.view()) && fast.intact());
      ASSERT_TRUE(fast_p.intact());
      for (std::size_t i = 0; i < blank.size(); ++i) {
        // Large elements may add up to infinities of both signs, and those to any NaN.
        const float a = fast_p.view()[i], b = slow_p.view()[i];
        ASSERT_TRUE((std::isnan(a) && std::isnan(b)) ||
                    std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b));
      }
    });
  }
}

TEST_P(PowerSgd, ProjectEqualsReference) {
  for (const Content content : {Content::normal, Content::zeros, Content::denormals}) {
    for_all_panels([&](const Panel& panel, std::size_t offset) {
      Guarded<float> e(matrix(panel, panel.rows, content, 1), offset);
      const auto p = make_content(Content::normal, 2, panel.rows * panel.rank);
      const auto before = matrix(panel, panel.rank, Content::normal, 3);
      Guarded<float> fast(before, 3 - offset), slow(before, 3 - offset);
      powersgd_project(panel, e.data(), p.data(), fast.data());
      powersgd_project_reference(panel, e.data(), p.data(), slow.data());
      ASSERT_TRUE(same_bits(fast.view(), slow.view()) && fast.intact());
    });
  }
}

TEST_P(PowerSgd, GiveEqualsReference) {
  for (const Content content : {Content::normal, Content::zeros, Content::denormals}) {
    for_all_panels([&](const Panel& panel, std::size_t offset) {
      const auto before = matrix(panel, panel.rows, content, 1);
      const auto p = make_content(Content::normal, 2, panel.rows * panel.rank);
      const auto q = matrix(panel, panel.rank, content, 3);
      Guarded<float> fast(before, offset), slow(before, offset);
      Guarded<float> fast_mean(before, 3 - offset), slow_mean(before, 3 - offset);
      powersgd_give(panel, p.data(), q.data(), fast_mean.data());
      powersgd_give_reference(panel, p.data(), q.data(), slow_mean.data());
      ASSERT_TRUE(same_bits(fast_mean.view(), slow_mean.view()) && fast_mean.intact());
      powersgd_settle(panel, p.data(), q.data(), fast.data());
      powersgd_settle_reference(panel, p.data(), q.data(), slow.data());
      ASSERT_TRUE(same_bits(fast.view(), slow.view()) && fast.intact());
    });
  }
}

// Against the definition, in double precision.
TEST(PowerSgdValue, ProductsAreThose) {
  const Panel panel{9, 37, 37, 3};
  const auto g = make_content(Content::normal, 1, 9 * 37),
             q = make_content(Content::normal, 2, 3 * 37);
  std::vector<float> e = make_content(Content::normal, 3, 9 * 37), p(9 * 3), back(3 * 37),
                     mean(9 * 37);
  const std::vector<float> before = e;
  ASSERT_TRUE(powersgd_take(panel, g.data(), e.data(), q.data(), p.data()));
  powersgd_project(panel, e.data(), p.data(), back.data());
  const std::vector<float> taken = e;
  powersgd_give(panel, p.data(), back.data(), mean.data());
  powersgd_settle(panel, p.data(), back.data(), e.data());
  for (std::size_t i = 0; i < 9; ++i) {
    for (std::size_t k = 0; k < 3; ++k) {
      double product = 0;
      for (std::size_t j = 0; j < 37; ++j) product += double{taken[i * 37 + j]} * q[k * 37 + j];
      EXPECT_NEAR(p[i * 3 + k], product, 1e-5);
    }
    for (std::size_t j = 0; j < 37; ++j) {
      double product = 0;
      for (std::size_t k = 0; k < 3; ++k) product += double{p[i * 3 + k]} * back[k * 37 + j];
      EXPECT_EQ(taken[i * 37 + j], before[i * 37 + j] + g[i * 37 + j]);
      EXPECT_NEAR(mean[i * 37 + j], product, 1e-5 * (1 + std::abs(product)));
      EXPECT_EQ(e[i * 37 + j], taken[i * 37 + j] - mean[i * 37 + j]);
    }
  }
  double product = 0;
  for (std::size_t i = 0; i < 9; ++i) product += double{taken[i * 37 + 20]} * p[i * 3 + 1];
  EXPECT_NEAR(back[37 + 20], product, 1e-4);
}

// Elements beyond the limit never enter E, but the rest of the row does.
TEST(PowerSgdValue, NonFiniteElementsStayOutside) {
  const Panel panel{2, 40, 40, 2};
  for (std::size_t at = 0; at < 80; ++at) {
    std::vector<float> g(80, 1.0f), e(80, 2.0f), q(80, 1.0f), p(4);
    const float bad[] = {std::numeric_limits<float>::infinity(),
                         std::numeric_limits<float>::quiet_NaN(), -2 * gradient_limit};
    g[at] = bad[at % 3];
    ASSERT_FALSE(powersgd_take(panel, g.data(), e.data(), q.data(), p.data()));
    for (std::size_t i = 0; i < 80; ++i) ASSERT_EQ(e[i], i == at ? 2.0f : 3.0f);
  }
}

}  // namespace
}  // namespace thinwire
