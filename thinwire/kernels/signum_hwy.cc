// signum_hwy.cc: momentum and its signs with the widest vectors of the machine.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/signum.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "thinwire/kernels/signum_hwy.cc"
#include <hwy/foreach_target.h>
// Highway requires this include after foreach_target.h.
#include <hwy/highway.h>

#include "thinwire/kernels/limit.h"
#include "thinwire/kernels/mask_bits-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

bool SignumPass(float momentum, const float* HWY_RESTRICT g, float* HWY_RESTRICT m,
                std::size_t count, std::uint8_t* HWY_RESTRICT negative,
                std::uint8_t* HWY_RESTRICT zero) {
  const hn::CappedTag<float, 16> d;
  const std::size_t lanes = hn::Lanes(d);
  const auto keep = hn::Set(d, momentum), rest = hn::Set(d, 1.0f - momentum);
  const auto limit = hn::Set(d, gradient_limit);
  const auto nothing = hn::Zero(d);
  bool finite = true;
  std::size_t i = 0;
  for (; count - i >= bits_margin; i += bits_block) {
    for (std::size_t k = 0; k < bits_block; k += lanes) {
      const auto old = hn::LoadU(d, m + i + k);
      const auto step = hn::LoadU(d, g + i + k);
      auto next = hn::Add(hn::Mul(keep, old), hn::Mul(rest, step));
      const auto sound = hn::Le(hn::Abs(step), limit);
      if (HWY_UNLIKELY(!hn::AllTrue(d, sound))) {
        next = hn::IfThenElse(sound, next, old);
        finite = false;
      }
      hn::StoreU(next, d, m + i + k);
      StoreBits(d, hn::Lt(next, nothing), negative, i + k);
      StoreBits(d, hn::Eq(next, nothing), zero, i + k);
    }
  }
  const bool end =
      signum_pass_reference(momentum, g + i, m + i, count - i, negative + i / 8, zero + i / 8);
  return finite && end;
}

}  // namespace HWY_NAMESPACE
}  // namespace thinwire
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinwire {

HWY_EXPORT(SignumPass);

bool signum_pass(float momentum, const float* g, float* m, std::size_t count,
                 std::uint8_t* negative, std::uint8_t* zero) {
  return HWY_DYNAMIC_DISPATCH(SignumPass)(momentum, g, m, count, negative, zero);
}

}  // namespace thinwire
#endif
