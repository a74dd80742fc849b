// symmetric_test.cc: the passes of an eigen-decomposition: their values, and the same bits on every
// vector width.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/symmetric.h"

#include "tests/kernels/kernel_testing.h"

namespace thinwire {
namespace {

class Symmetric : public EachTarget {};
THINWIRE_EACH_TARGET(Symmetric);

std::vector<double> doubles(Content content, std::uint64_t seed, std::size_t count) {
  const auto floats = make_content(content, seed, count);
  return {floats.begin(), floats.end()};
}

bool same(Guarded<double>& a, Guarded<double>& b) {
  // The NaN depends on the order of operands, which compilers may choose.
  const auto equal = [](double x, double y) {
    return std::bit_cast<std::uint64_t>(x) == std::bit_cast<std::uint64_t>(y) ||
           (std::isnan(x) && std::isnan(y));
  };
  return a.intact() && b.intact() && std::ranges::equal(a.view(), b.view(), equal);
}

// body(content, stride, offset)
template <typename Body>
void for_all_strides(Body body) {
  for (const Content content : all_contents) {
    for (const std::size_t stride : {8u, 16u, 24u, 40u}) {
      for (std::size_t offset = 0; offset < 3; ++offset) body(content, stride, offset);
    }
  }
}

TEST_P(Symmetric, GramEqualsReference) {
  for_all_strides([](Content content, std::size_t stride, std::size_t offset) {
    for (const std::size_t rows : {0u, 1u, 2u, 7u, 65u}) {
      Guarded<double> a(doubles(content, 1, rows * stride), offset);
      Guarded<double> fast(doubles(Content::normal, 2, stride * stride), offset), slow = fast;
      symmetric_gram(a.data(), rows, stride, fast.data());
      symmetric_gram_reference(a.data(), rows, stride, slow.data());
      ASSERT_TRUE(same(fast, slow)) << rows << " x " << stride;
    }
  });
}

TEST_P(Symmetric, StepEqualsReference) {
  for_all_strides([](Content content, std::size_t stride, std::size_t offset) {
    Guarded<double> u(doubles(Content::normal, 1, stride), offset);
    Guarded<double> w(doubles(Content::ties, 2, stride), offset);
    Guarded<double> v(doubles(Content::normal, 3, stride), offset);
    for (std::size_t size = 0; size <= stride; ++size) {
      Guarded<double> fast(doubles(content, 4, stride * stride), offset), slow = fast;
      Guarded<double> fast_product(doubles(Content::normal, 5, stride), offset),
          slow_product = fast_product;
      symmetric_step(fast.data(), size, stride, u.data(), w.data(), v.data(), fast_product.data());
      symmetric_step_reference(slow.data(), size, stride, u.data(), w.data(), v.data(),
                               slow_product.data());
      ASSERT_TRUE(same(fast, slow)) << size << " of " << stride;
      ASSERT_TRUE(same(fast_product, slow_product)) << size << " of " << stride;
    }
  });
}

TEST(SymmetricValue, KnownGram) {
  std::vector<double> a(2 * 8), g(8 * 8, 1.0);
  a[0] = 2, a[1] = 3, a[8 + 1] = 5;  // rows (2, 3) and (0, 5)
  symmetric_gram_reference(a.data(), 2, 8, g.data());
  EXPECT_EQ(g[0], 1 + 4);
  EXPECT_EQ(g[1], 1 + 6);
  EXPECT_EQ(g[8 + 1], 1 + 34);
  EXPECT_EQ(g[7], 1);
}

TEST(SymmetricValue, KnownStep) {
  std::vector<double> g(8 * 8), u(8), w(8), v(8), product(8);
  g[0] = 20, g[1] = g[8] = 30, g[9] = 40;
  u[0] = 1, u[1] = 2, w[0] = 3, w[1] = 4, v[0] = 1, v[1] = 10;
  symmetric_step_reference(g.data(), 2, 8, u.data(), w.data(), v.data(), product.data());
  EXPECT_EQ(g[0], 20 - 6);
  EXPECT_EQ(g[1], 30 - 10);
  EXPECT_EQ(g[8], 30 - 10);
  EXPECT_EQ(g[9], 40 - 16);
  EXPECT_EQ(product[0], 14 + 200);
  EXPECT_EQ(product[1], 20 + 240);
}

}  // namespace
}  // namespace thinwire
