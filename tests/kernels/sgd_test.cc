// sgd_test.cc: the weight update: equal on every vector width, and equal to plain SGD.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/sgd.h"

#include "tests/kernels/kernel_testing.h"

namespace thinwire {
namespace {

class Sgd : public EachTarget {};
THINWIRE_EACH_TARGET(Sgd);

TEST_P(Sgd, FastEqualsReference) {
  for_all_shapes([](Content content, std::size_t size, std::size_t offset) {
    const auto average = make_content(content, 1, size);
    // Finite weights, because it is unspecified which of two NaNs a sum keeps.
    const auto plain = content >= Content::nan_first ? Content::normal : content;
    const auto w = make_content(plain, 2, size), s = make_content(plain, 3, size);
    for (const bool nesterov : {false, true}) {
      for (const bool has_s : {false, true}) {
        const SgdRule rule{0.1f, 0.9f, has_s ? 1e-2f : 0.0f, nesterov};
        Guarded<float> input(average, offset), w_fast(w, 3 - offset), w_slow(w, 3 - offset);
        Guarded<float> s_fast(s, (offset + 1) % 4), s_slow(s, (offset + 1) % 4);
        sgd_step(rule, input.data(), w_fast.data(), has_s ? s_fast.data() : nullptr, size);
        sgd_step_reference(rule, input.data(), w_slow.data(), has_s ? s_slow.data() : nullptr,
                           size);
        ASSERT_TRUE(same_bits(w_fast.view(), w_slow.view()) && w_fast.intact());
        ASSERT_TRUE(same_bits(s_fast.view(), s_slow.view()) && s_fast.intact());
      }
    }
  });
}

TEST(SgdMeaning, ByHand) {
  const float average = 1;
  float w = 8, s = 2;
  sgd_step({0.5f, 0.5f, 0.25f, false}, &average, &w, &s, 1);  // d = 2, s' = 1 + 2
  EXPECT_EQ(s, 3);
  EXPECT_EQ(w, 8 - 0.5f * (1 + 3));
  w = 8, s = 2;
  sgd_step({0.5f, 0.5f, 0.25f, true}, &average, &w, &s, 1);  // d = 2, s' = (2 + 2)/2
  EXPECT_EQ(s, 2);
  EXPECT_EQ(w, 8 - 0.5f * (1 + (2 + 2)));
  w = 8;
  sgd_step({0.5f, 0.5f, 0, false}, &average, &w, nullptr, 1);
  EXPECT_EQ(w, 7.5f);
}

// Momentum of the gradient before the exchange plus momentum of the decay after it, against the
// usual optimizer with one momentum for both.
TEST(SgdMeaning, BothMomentaTogetherAreMomentumSgd) {
  const float m = 0.9f, rate = 0.05f, decay = 0.01f;
  for (const bool nesterov : {false, true}) {
    float w = 1, s = 0, u = 0;
    double w_usual = 1, buffer = 0;
    for (std::size_t t = 0; t < 50; ++t) {
      const float g = random_unit(1, t) - 0.4f;
      u = nesterov ? m * (u + g) : m * u + g;
      const float average = nesterov ? u + g : u;
      sgd_step({rate, m, decay, nesterov}, &average, &w, &s, 1);
      const double pulled = g + decay * w_usual;
      buffer = m * buffer + pulled;
      w_usual -= rate * (nesterov ? pulled + m * buffer : buffer);
    }
    EXPECT_NEAR(w, w_usual, 1e-5) << nesterov;
  }
}

}  // namespace
}  // namespace thinwire
