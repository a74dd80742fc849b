// csc_test.cc: the chunk pass against its reference on every vector width, and its arithmetic.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/csc.h"

#include "tests/kernels/kernel_testing.h"

namespace thinwire {
namespace {

constexpr Accumulate all_kinds[] = {Accumulate::none, Accumulate::residual, Accumulate::momentum,
                                    Accumulate::nesterov};

class Csc : public EachTarget {};
THINWIRE_EACH_TARGET(Csc);

TEST_P(Csc, FastEqualsReference) {
  for_all_shapes([](Content content, std::size_t size, std::size_t offset) {
    for (const Accumulate kind : all_kinds) {
      const auto make = [&](std::uint64_t seed) {
        return make_content(content < Content::nan_first ? content : Content::normal, seed, size);
      };
      Guarded<float> g(make_content(content, 1, size), offset);
      Guarded<float> u(make(2), (offset + 1) % 4), v(make(3), (offset + 2) % 4);
      Guarded<float> slow_u = u, slow_v = v;
      const MemoryRule rule{kind, 0.9f};
      const double fast = csc_pass(rule, g.data(), u.data(), v.data(), size);
      const double slow = csc_pass_reference(rule, g.data(), slow_u.data(), slow_v.data(), size);
      ASSERT_EQ(std::isnan(fast), std::isnan(slow));
      if (!std::isnan(slow)) {
        ASSERT_EQ(std::bit_cast<std::uint64_t>(fast), std::bit_cast<std::uint64_t>(slow));
      }
      const bool wild = content >= Content::nan_first && size > 0;
      if (content != Content::heavy) {
        ASSERT_EQ(std::isfinite(slow), !wild);
      }
      ASSERT_TRUE(same_bits(u.view(), slow_u.view()));
      ASSERT_TRUE(same_bits(v.view(), slow_v.view()));
      ASSERT_TRUE(u.intact() && v.intact());
    }
  });
}

TEST_P(Csc, NonFiniteElementsKeepTheirMemory) {
  for (const Accumulate kind : all_kinds) {
    for (std::size_t at = 0; at < 70; ++at) {
      for (const float bad : {std::numeric_limits<float>::quiet_NaN(),
                              std::numeric_limits<float>::infinity(), -2 * gradient_limit}) {
        std::vector<float> g(70, 1.0f), u(70, 2.0f), v(70, 3.0f);
        g[at] = bad;
        EXPECT_FALSE(std::isfinite(csc_pass({kind, 0.5f}, g.data(), u.data(), v.data(), g.size())));
        EXPECT_EQ(u[at], 2.0f);
        EXPECT_EQ(v[at], 3.0f);
        EXPECT_EQ(v[at == 0 ? 1 : 0], kind == Accumulate::none       ? 3.0f
                                      : kind == Accumulate::residual ? 4.0f
                                      : kind == Accumulate::momentum ? 5.0f
                                                                     : 5.5f);
      }
    }
  }
}

TEST(CscValue, SumsDoNotOverflow) {
  std::vector<float> g(100, -gradient_limit), v(100, -std::numeric_limits<float>::max());
  EXPECT_EQ(csc_pass({Accumulate::none, 0}, g.data(), nullptr, nullptr, g.size()),
            100.0 * gradient_limit);
  EXPECT_EQ(csc_pass({Accumulate::residual, 0}, g.data(), nullptr, v.data(), g.size()),
            100.0 * std::numeric_limits<float>::max());
}

}  // namespace
}  // namespace thinwire
