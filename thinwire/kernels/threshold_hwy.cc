// threshold_hwy.cc: threshold quantisation with the widest vectors of the machine.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/threshold.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "thinwire/kernels/threshold_hwy.cc"
#include <hwy/foreach_target.h>
// Highway requires this include after foreach_target.h.
#include <hwy/highway.h>

#include <algorithm>

#include "thinwire/kernels/limit.h"
#include "thinwire/kernels/mask_bits-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <bool has_r>
ThresholdTally Pass(float tau, const float* HWY_RESTRICT g, float* HWY_RESTRICT r,
                    std::size_t count, std::uint8_t* HWY_RESTRICT plus,
                    std::uint8_t* HWY_RESTRICT minus) {
  const hn::CappedTag<float, 16> d;
  const std::size_t lanes = hn::Lanes(d);
  const auto up = hn::Set(d, tau), down = hn::Set(d, -tau), nothing = hn::Zero(d);
  const auto limit = hn::Set(d, gradient_limit);
  auto largest = nothing;
  ThresholdTally tally;
  std::size_t i = 0;
  for (; count - i >= bits_margin; i += bits_block) {
    for (std::size_t k = 0; k < bits_block; k += lanes) {
      auto x = hn::LoadU(d, g + i + k);
      const auto finite = hn::Le(hn::Abs(x), limit);
      if constexpr (has_r) x = hn::Add(x, hn::LoadU(d, r + i + k));
      const auto over = hn::And(hn::Ge(x, up), finite), under = hn::And(hn::Le(x, down), finite);
      StoreBits(d, over, plus, i + k);
      StoreBits(d, under, minus, i + k);
      tally.sent += hn::CountTrue(d, over) + hn::CountTrue(d, under);
      auto kept = hn::Sub(x, hn::IfThenElse(over, up, hn::IfThenElseZero(under, down)));
      largest = hn::Max(largest, hn::IfThenElseZero(finite, hn::Abs(kept)));
      if (HWY_UNLIKELY(!hn::AllTrue(d, finite))) {
        tally.finite = false;
        if constexpr (has_r) kept = hn::IfThenElse(finite, kept, hn::LoadU(d, r + i + k));
      }
      if constexpr (has_r) hn::StoreU(kept, d, r + i + k);
    }
  }
  const ThresholdTally end = threshold_pass_reference(tau, g + i, has_r ? r + i : nullptr,
                                                      count - i, plus + i / 8, minus + i / 8);
  return {tally.sent + end.sent, std::max(hn::GetLane(hn::MaxOfLanes(d, largest)), end.largest),
          tally.finite && end.finite};
}

ThresholdTally ThresholdPass(float tau, const float* g, float* r, std::size_t count,
                             std::uint8_t* plus, std::uint8_t* minus) {
  return r == nullptr ? Pass<false>(tau, g, r, count, plus, minus)
                      : Pass<true>(tau, g, r, count, plus, minus);
}

}  // namespace HWY_NAMESPACE
}  // namespace thinwire
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinwire {

HWY_EXPORT(ThresholdPass);

ThresholdTally threshold_pass(float tau, const float* g, float* r, std::size_t count,
                              std::uint8_t* plus, std::uint8_t* minus) {
  return HWY_DYNAMIC_DISPATCH(ThresholdPass)(tau, g, r, count, plus, minus);
}

}  // namespace thinwire
#endif
