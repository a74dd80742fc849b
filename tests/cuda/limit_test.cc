// limit_test.cc: the limit of a gradient on a GPU, and the way back from a step that is not taken.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/limit.h"

#include "tests/cuda/device.h"
#include "tests/kernels/kernel_testing.h"

namespace thinwire {
namespace {

class LimitOnDevice : public OnDevice {
 protected:
  bool within(DType type, const Elements& x, std::size_t offset) {
    const OnGpu<std::byte> in(x, offset * size_of(type));
    const VerdictOnGpu verdict;
    all_within_limit_cuda(type, in.data(), x.size() / size_of(type), verdict.data(), stream);
    const Verdict found = verdict.download(stream);
    EXPECT_FALSE(found.void_step());
    EXPECT_LE(found.unsound, 1u);
    return found.unsound == 0;
  }

  // take_out() on both, from u and v of ordinary size.
  void compare_take_out(DType type, const std::vector<float>& values, std::size_t offset,
                        const Verdict& verdict) {
    const Elements g = elements_of(type, values);
    const std::vector<float> wide = floats_of(type, g);
    for (const Accumulate kind :
         {Accumulate::none, Accumulate::residual, Accumulate::momentum, Accumulate::nesterov}) {
      for (const float scale : {1.0f, 0.7f}) {
        auto u = make_content(Content::normal, 2, values.size());
        auto v = make_content(Content::ties, 3, values.size());
        const OnGpu<std::byte> g_there(g, offset * size_of(type));
        const OnGpu<float> u_there(u, offset), v_there(v, 3 - offset), scale_there({scale});
        const VerdictOnGpu verdict_there(verdict);
        take_out_cuda(kind, scale == 1 ? nullptr : scale_there.data(), type, g_there.data(),
                      has_momentum(kind) ? u_there.data() : nullptr,
                      has_residual(kind) ? v_there.data() : nullptr, values.size(),
                      verdict_there.data(), stream);
        if (verdict.unsound != 0)
          take_out(kind, scale, wide.data(), nullptr, u.data(), v.data(), values.size());
        ASSERT_TRUE(same_bits<float>(u_there.download(stream), u));
        ASSERT_TRUE(same_bits<float>(v_there.download(stream), v));
        ASSERT_EQ(g_there.download(stream), g);
      }
    }
  }
};

TEST_F(LimitOnDevice, EqualsTheCpu) {
  for_all_shapes([&](Content content, std::size_t size, std::size_t offset) {
    const auto values = make_content(content, 1, size);
    for (const DType type : gradient_types) {
      const Elements x = elements_of(type, values);
      ASSERT_EQ(within(type, x, offset),
                all_within_limit_reference(floats_of(type, x).data(), size));
    }
  });
}

TEST_F(LimitOnDevice, OneElementDecides) {
  constexpr float infinite = std::numeric_limits<float>::infinity();
  constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> x(large_odd_size, -gradient_limit);
  EXPECT_TRUE(within(DType::f32, elements_of(DType::f32, x), 0));
  EXPECT_TRUE(within(DType::f32, elements_of(DType::f32, x), 1));
  for (const float bad : {not_a_number, -not_a_number, infinite, -infinite,
                          std::nextafter(gradient_limit, infinite)}) {
    for (const std::size_t at : {std::size_t{0}, std::size_t{1025}, x.size() - 4, x.size() - 1}) {
      x[at] = bad;
      EXPECT_FALSE(within(DType::f32, elements_of(DType::f32, x), 0)) << at;
      x[at] = 1;
    }
  }
}

TEST_F(LimitOnDevice, TakeOutEqualsTheCpu) {
  for_all_shapes([&](Content content, std::size_t size, std::size_t offset) {
    if (offset > 1) return;
    for (const DType type : gradient_types) {
      const auto values = make_content(content, 1, size);
      ASSERT_NO_FATAL_FAILURE(compare_take_out(type, values, offset, {1, 1, 0}));
    }
  });
  for (const DType type : gradient_types)
    ASSERT_NO_FATAL_FAILURE(compare_take_out(type, wild_floats(100'003, 4), 1, {1, 0, 0}));
}

TEST_F(LimitOnDevice, ASoundRankTakesNothingOut) {
  const auto values = make_content(Content::normal, 1, 5000);
  compare_take_out(DType::f32, values, 0, {0, 1, 0});
  compare_take_out(DType::bf16, values, 1, {0, 0, 5});
}

TEST_F(LimitOnDevice, FillsTheGradientOfAVoidStep) {
  const auto values = make_content(Content::normal, 1, 5003);
  for (const DType type : gradient_types) {
    const Elements x = elements_of(type, values);
    for (const float fill : {0.0f, std::numeric_limits<float>::quiet_NaN()}) {
      const Elements filled = elements_of(type, std::vector<float>(values.size(), fill));
      for (const Verdict& verdict :
           {Verdict{0, 0, 0}, Verdict{1, 0, 0}, Verdict{0, 1, 0}, Verdict{0, 0, 9}}) {
        for (const std::size_t offset : {0, 1}) {
          const OnGpu<std::byte> there(x, offset * size_of(type));
          const VerdictOnGpu verdict_there(verdict);
          fill_void_cuda(type, there.data(), values.size(), fill, verdict_there.data(), stream);
          EXPECT_TRUE(
              same_elements(type, there.download(stream), verdict.void_step() ? filled : x));
        }
      }
    }
  }
}

}  // namespace
}  // namespace thinwire
