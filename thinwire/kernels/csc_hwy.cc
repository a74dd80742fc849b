// csc_hwy.cc: adds a gradient to the memory and computes the norm, 32 elements at a time.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/csc.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "thinwire/kernels/csc_hwy.cc"
#include <hwy/foreach_target.h>
// Highway requires this include after foreach_target.h.
#include <hwy/highway.h>

#include <algorithm>
#include <limits>

#include "thinwire/kernels/norm.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Vectors of unknown length cannot form an array, and vectors of one lane have no halves; then the
// plain sums are used.
#if !HWY_HAVE_SCALABLE && HWY_TARGET != HWY_SCALAR

using D = hn::CappedTag<float, 16>;
using V = hn::Vec<D>;

// Computes and stores u' and v' of one vector. Returns |v'|, or infinity where g is beyond the
// limit.
template <Accumulate accumulate>
HWY_INLINE V take_in(const float* HWY_RESTRICT g, float* HWY_RESTRICT u, float* HWY_RESTRICT v,
                     V momentum) {
  const D d;
  const V step = hn::LoadU(d, g);
  const V infinity = hn::Set(d, std::numeric_limits<float>::infinity());
  const auto sound = hn::Le(hn::Abs(step), hn::Set(d, gradient_limit));
  if constexpr (accumulate == Accumulate::none) {
    return hn::IfThenElse(sound, hn::Abs(step), infinity);
  } else {
    constexpr bool has_u = accumulate != Accumulate::residual;
    const V old_v = hn::LoadU(d, v);
    V old_u = hn::Zero(d), velocity = old_u, fed = step;
    if constexpr (has_u) old_u = hn::LoadU(d, u);
    if constexpr (accumulate == Accumulate::momentum) {
      velocity = hn::Add(hn::Mul(momentum, old_u), step);
      fed = velocity;
    } else if constexpr (accumulate == Accumulate::nesterov) {
      velocity = hn::Mul(momentum, hn::Add(old_u, step));
      fed = hn::Add(velocity, step);
    }
    const V residual = hn::Add(old_v, fed);
    if constexpr (has_u) hn::StoreU(hn::IfThenElse(sound, velocity, old_u), d, u);
    hn::StoreU(hn::IfThenElse(sound, residual, old_v), d, v);
    return hn::IfThenElse(sound, hn::Abs(residual), infinity);
  }
}

// The norm of one block.
template <Accumulate accumulate>
HWY_INLINE double PassBlock(const MemoryRule& rule, const float* g, float* u, float* v,
                            std::size_t count) {
  const D d;
  const hn::Half<D> half;
  const hn::Repartition<double, D> wide;
  constexpr std::size_t lanes = hn::MaxLanes(D()), vectors = csc_sums / lanes;
  constexpr bool has_v = accumulate != Accumulate::none;
  constexpr bool has_u = has_v && accumulate != Accumulate::residual;
  const V momentum = hn::Set(d, rule.momentum);
  hn::Vec<decltype(wide)> part[2 * vectors];
  for (auto& sum : part) sum = hn::Zero(wide);
  std::size_t i = 0;
  for (; count - i >= csc_sums; i += csc_sums) {
    for (std::size_t k = 0; k < vectors; ++k) {
      const std::size_t at = i + k * lanes;
      const V magnitude =
          take_in<accumulate>(g + at, has_u ? u + at : nullptr, has_v ? v + at : nullptr, momentum);
      part[2 * k] = hn::Add(part[2 * k], hn::PromoteTo(wide, hn::LowerHalf(half, magnitude)));
      part[2 * k + 1] =
          hn::Add(part[2 * k + 1], hn::PromoteTo(wide, hn::UpperHalf(half, magnitude)));
    }
  }
  double sums[csc_sums];
  for (std::size_t k = 0; k < 2 * vectors; ++k) hn::StoreU(part[k], wide, sums + k * lanes / 2);
  csc_add(rule, g + i, has_u ? u + i : nullptr, has_v ? v + i : nullptr, count - i, sums);
  return add_tree<csc_sums>(sums);
}

template <Accumulate accumulate>
double Pass(const MemoryRule& rule, const float* g, float* u, float* v, std::size_t count) {
  constexpr bool has_v = accumulate != Accumulate::none;
  constexpr bool has_u = has_v && accumulate != Accumulate::residual;
  double blocks[csc_sums] = {};
  for (std::size_t at = 0; at < count; at += csc_block)
    blocks[at / csc_block % csc_sums] +=
        PassBlock<accumulate>(rule, g + at, has_u ? u + at : nullptr, has_v ? v + at : nullptr,
                              std::min(csc_block, count - at));
  return add_tree<csc_sums>(blocks);
}

#else

template <Accumulate>
double Pass(const MemoryRule& rule, const float* g, float* u, float* v, std::size_t count) {
  return csc_pass_reference(rule, g, u, v, count);
}

#endif

double CscPass(const MemoryRule& rule, const float* g, float* u, float* v, std::size_t count) {
  switch (rule.accumulate) {
    case Accumulate::none:
      return Pass<Accumulate::none>(rule, g, u, v, count);
    case Accumulate::residual:
      return Pass<Accumulate::residual>(rule, g, u, v, count);
    case Accumulate::momentum:
      return Pass<Accumulate::momentum>(rule, g, u, v, count);
    case Accumulate::nesterov:
      return Pass<Accumulate::nesterov>(rule, g, u, v, count);
    case Accumulate::pool:
      break;  // dgc's alone
  }
  return 0;
}

}  // namespace HWY_NAMESPACE
}  // namespace thinwire
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinwire {

HWY_EXPORT(CscPass);

double csc_pass(const MemoryRule& rule, const float* g, float* u, float* v, std::size_t count) {
  return HWY_DYNAMIC_DISPATCH(CscPass)(rule, g, u, v, count);
}

}  // namespace thinwire
#endif
