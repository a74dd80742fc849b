// norm_hwy.cc: squares in sixteen sums, held in as many vectors as they need.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/norm.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "thinwire/kernels/norm_hwy.cc"
#include <hwy/foreach_target.h>
// Highway requires this include after foreach_target.h.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace thinwire {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

double SquaredNorm(const float* x, std::size_t count) {
  double sums[16] = {};
  std::size_t i = 0;
  // Vectors of unknown length cannot form an array; then the plain sums are used.
#if !HWY_HAVE_SCALABLE
  const hn::CappedTag<double, 16> d;
  const hn::Rebind<float, decltype(d)> narrow;
  constexpr std::size_t lanes = hn::MaxLanes(hn::CappedTag<double, 16>());
  constexpr std::size_t vectors = 16 / lanes;
  hn::Vec<decltype(d)> part[vectors];
  for (auto& sum : part) sum = hn::Zero(d);
  for (; count - i >= 16; i += 16) {
    for (std::size_t k = 0; k < vectors; ++k) {
      const auto wide = hn::PromoteTo(d, hn::LoadU(narrow, x + i + k * lanes));
      part[k] = hn::Add(part[k], hn::Mul(wide, wide));
    }
  }
  for (std::size_t k = 0; k < vectors; ++k) hn::StoreU(part[k], d, sums + k * lanes);
#endif
  add_squares(x + i, count - i, sums);
  return add_sums(sums);
}

}  // namespace HWY_NAMESPACE
}  // namespace thinwire
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinwire {

HWY_EXPORT(SquaredNorm);

double squared_norm(const float* x, std::size_t count) {
  return HWY_DYNAMIC_DISPATCH(SquaredNorm)(x, count);
}

}  // namespace thinwire
#endif
