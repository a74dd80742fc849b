// limit_hwy.cc: the limit of a gradient with the widest vectors of the machine.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/limit.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "thinwire/kernels/limit_hwy.cc"
#include <hwy/foreach_target.h>
// Highway requires this include after foreach_target.h.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace thinwire {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Compares bit patterns of magnitudes, where NaN is above infinity, so their maximum decides. There
// are four maxima, so that no vector waits for the previous one.
bool AllWithinLimit(const float* x, std::size_t count) {
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> di;
  const std::size_t lanes = hn::Lanes(d);
  const auto at = [&](std::size_t i)
                      HWY_ATTR { return hn::BitCast(di, hn::Abs(hn::LoadU(d, x + i))); };
  auto a = hn::Zero(di), b = a, c = a, e = a;
  std::size_t i = 0;
  for (; count - i >= 4 * lanes; i += 4 * lanes) {
    a = hn::Max(a, at(i));
    b = hn::Max(b, at(i + lanes));
    c = hn::Max(c, at(i + 2 * lanes));
    e = hn::Max(e, at(i + 3 * lanes));
  }
  const auto most = hn::BitCast(d, hn::Max(hn::Max(a, b), hn::Max(c, e)));
  return hn::AllTrue(d, hn::Le(most, hn::Set(d, gradient_limit))) &&
         all_within_limit_reference(x + i, count - i);
}

}  // namespace HWY_NAMESPACE
}  // namespace thinwire
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinwire {

HWY_EXPORT(AllWithinLimit);

bool all_within_limit(const float* x, std::size_t count) {
  return HWY_DYNAMIC_DISPATCH(AllWithinLimit)(x, count);
}

}  // namespace thinwire
#endif
