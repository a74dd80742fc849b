// quantiser_testing.h: what the tests of all quantisers require of their kernels.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/kernels/kernel_testing.h"
#include "thinwire/kernels/draw.h"

namespace thinwire {

// Encoding with and without residual, and adding, against the references, bit for bit, at awkward
// sizes and contents. Nothing outside the arrays is touched.
template <typename Rule, auto encode, auto encode_reference, auto add, auto add_reference>
void expect_fast_equals_reference(const Rule& rule,
                                  std::size_t (*bytes_of)(const Rule&, std::size_t)) {
  const DrawKey key = draw_key(9);
  for_all_shapes([&](Content content, std::size_t size, std::size_t offset) {
    const auto g = make_content(content, 1, size);
    const auto v = make_content(Content::normal, 2, size);
    const std::vector<std::uint8_t> blank(bytes_of(rule, size));
    for (const bool residual : {false, true}) {
      Guarded<float> input(g, offset), fast_v(v, offset), slow_v(v, offset);
      Guarded<std::uint8_t> fast(blank, offset), slow(blank, offset);
      ASSERT_EQ(encode(rule, input.data(), residual ? fast_v.data() : nullptr, size, key, 64,
                       fast.data()),
                encode_reference(rule, input.data(), residual ? slow_v.data() : nullptr, size, key,
                                 64, slow.data()));
      ASSERT_TRUE(same_bits(fast.view(), slow.view()) && fast.intact());
      ASSERT_TRUE(same_bits(fast_v.view(), slow_v.view()) && fast_v.intact());
      Guarded<float> fast_sum(v, 3 - offset), slow_sum(v, 3 - offset);
      ASSERT_TRUE(add(rule, fast.data(), size, 0.3f, fast_sum.data()));
      ASSERT_TRUE(add_reference(rule, fast.data(), size, 0.3f, slow_sum.data()));
      ASSERT_TRUE(same_bits(fast_sum.view(), slow_sum.view()) && fast_sum.intact());
      if (!residual) continue;
      // Sent plus kept equals given. If nothing was given, v is unchanged.
      std::vector<float> sum(fast_v.view().begin(), fast_v.view().end());
      ASSERT_TRUE(add(rule, fast.data(), size, 1.0f, sum.data()));
      for (std::size_t i = 0; i < size; ++i) {
        const float x = g[i] + v[i];
        const bool same =
            std::abs(sum[i] - x) <= 1e-6f * (std::abs(x) + std::abs(fast_v.view()[i]));
        ASSERT_TRUE(same || sum[i] == v[i]) << i << ": " << sum[i] << " against " << x;
      }
    }
  });
}

}  // namespace thinwire
