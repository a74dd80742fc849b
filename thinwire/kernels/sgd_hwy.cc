// sgd_hwy.cc: the step of the weights with the widest vectors of the machine.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/sgd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "thinwire/kernels/sgd_hwy.cc"
#include <hwy/foreach_target.h>
// Highway requires this include after foreach_target.h.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace thinwire {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

enum class Decay { none, momentum, nesterov };

template <Decay decay>
void Step(const SgdRule& rule, const float* average, float* w, float* s, std::size_t count) {
  const hn::ScalableTag<float> d;
  const std::size_t lanes = hn::Lanes(d);
  const auto rate = hn::Set(d, rule.rate), momentum = hn::Set(d, rule.momentum);
  const auto factor = hn::Set(d, rule.decay);
  std::size_t i = 0;
  for (; count - i >= lanes; i += lanes) {
    const auto weight = hn::LoadU(d, w + i);
    auto step = hn::LoadU(d, average + i);
    if constexpr (decay != Decay::none) {
      const auto pull = hn::Mul(factor, weight);
      const auto old = hn::LoadU(d, s + i);
      const auto next = decay == Decay::nesterov ? hn::Mul(momentum, hn::Add(old, pull))
                                                 : hn::Add(hn::Mul(momentum, old), pull);
      step = hn::Add(step, decay == Decay::nesterov ? hn::Add(next, pull) : next);
      hn::StoreU(next, d, s + i);
    }
    hn::StoreU(hn::Sub(weight, hn::Mul(rate, step)), d, w + i);
  }
  sgd_step_reference(rule, average + i, w + i, decay == Decay::none ? nullptr : s + i, count - i);
}

void SgdStep(const SgdRule& rule, const float* average, float* w, float* s, std::size_t count) {
  if (s == nullptr) return Step<Decay::none>(rule, average, w, s, count);
  if (rule.nesterov) return Step<Decay::nesterov>(rule, average, w, s, count);
  return Step<Decay::momentum>(rule, average, w, s, count);
}

}  // namespace HWY_NAMESPACE
}  // namespace thinwire
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinwire {

HWY_EXPORT(SgdStep);

void sgd_step(const SgdRule& rule, const float* average, float* w, float* s, std::size_t count) {
  HWY_DYNAMIC_DISPATCH(SgdStep)(rule, average, w, s, count);
}

}  // namespace thinwire
#endif
