// average_hwy.cc: sums to means with the widest vectors of the machine.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/average.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "thinwire/kernels/average_hwy.cc"
#include <hwy/foreach_target.h>
// Highway requires this include after foreach_target.h.
#include <hwy/highway.h>

#include <limits>

HWY_BEFORE_NAMESPACE();
namespace thinwire {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

bool ScaleFinite(float* x, std::size_t count, float factor) {
  const hn::ScalableTag<float> d;
  const std::size_t lanes = hn::Lanes(d);
  const auto scale = hn::Set(d, factor);
  const auto infinity = hn::Set(d, std::numeric_limits<float>::infinity());
  auto finite = hn::Lt(hn::Zero(d), infinity);
  std::size_t i = 0;
  for (; count - i >= lanes; i += lanes) {
    const auto scaled = hn::Mul(hn::LoadU(d, x + i), scale);
    finite = hn::And(finite, hn::Lt(hn::Abs(scaled), infinity));
    hn::StoreU(scaled, d, x + i);
  }
  return scale_finite_reference(x + i, count - i, factor) && hn::AllTrue(d, finite);
}

}  // namespace HWY_NAMESPACE
}  // namespace thinwire
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinwire {

HWY_EXPORT(ScaleFinite);

bool scale_finite(float* x, std::size_t count, float factor) {
  return HWY_DYNAMIC_DISPATCH(ScaleFinite)(x, count, factor);
}

}  // namespace thinwire
#endif
