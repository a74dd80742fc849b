// norm_hwy.cc: the squared norm, its 32 sums held in as many vectors as they need.
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

double SquaresOfBlock(const float* x, std::size_t count) {
  double sums[norm_sums] = {};
  std::size_t i = 0;
  // Vectors of unknown length cannot form an array; then the plain sums are used.
#if !HWY_HAVE_SCALABLE
  const hn::CappedTag<double, norm_sums> d;
  const hn::Rebind<float, decltype(d)> narrow;
  constexpr std::size_t lanes = hn::MaxLanes(hn::CappedTag<double, norm_sums>());
  constexpr std::size_t vectors = norm_sums / lanes;
  hn::Vec<decltype(d)> part[vectors];
  for (auto& sum : part) sum = hn::Zero(d);
  for (; count - i >= norm_sums; i += norm_sums) {
    for (std::size_t k = 0; k < vectors; ++k) {
      const auto wide = hn::PromoteTo(d, hn::LoadU(narrow, x + i + k * lanes));
      part[k] = hn::Add(part[k], hn::Mul(wide, wide));
    }
  }
  if (i == count) {  // the upper levels of the tree are sums of vectors
    for (std::size_t half = vectors / 2; half > 0; half /= 2) {
      for (std::size_t k = 0; k < half; ++k) part[k] = hn::Add(part[k], part[k + half]);
    }
    hn::StoreU(part[0], d, sums);
    return add_tree<lanes>(sums);
  }
  for (std::size_t k = 0; k < vectors; ++k) hn::StoreU(part[k], d, sums + k * lanes);
#endif
  for (std::size_t k = 0; i < count; ++i, k = (k + 1) % norm_sums) {
    const double value = x[i];
    sums[k] += value * value;
  }
  return add_tree<norm_sums>(sums);
}

double SquaredNorm(const float* x, std::size_t count) {
  PairwiseSum sum;
  for (std::size_t i = 0; i < count; i += norm_block)
    sum.add(SquaresOfBlock(x + i, count - i < norm_block ? count - i : norm_block));
  return sum.total();
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
