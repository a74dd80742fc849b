// draw-inl.h: draw.h a vector at a time, for the Highway kernels.
// SPDX-License-Identifier: Apache-2.0
#if defined(THINWIRE_KERNELS_DRAW_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef THINWIRE_KERNELS_DRAW_INL_H_
#undef THINWIRE_KERNELS_DRAW_INL_H_
#else
#define THINWIRE_KERNELS_DRAW_INL_H_
#endif

#include <hwy/highway.h>

#include "thinwire/kernels/draw.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The draws of consecutive elements, one vector after the other.
class Draws {
 public:
  using D = hn::ScalableTag<std::uint32_t>;
  using V = hn::Vec<D>;

  HWY_INLINE Draws(DrawKey key, std::uint32_t first)
      : at_(hn::Add(hn::Mul(hn::Iota(D(), 0), hn::Set(D(), draw_step)),
                    hn::Set(D(), first * draw_step + key.start))),
        stride_(hn::Set(D(), static_cast<std::uint32_t>(hn::Lanes(D())) * draw_step)),
        twist_(hn::Set(D(), key.twist)) {}

  HWY_INLINE V bits() {
    V x = at_;
    at_ = hn::Add(at_, stride_);
    x = hn::Mul(hn::Xor(x, hn::ShiftRight<16>(x)), hn::Set(D(), draw_factors[0]));
    x = hn::Mul(hn::Xor(hn::Xor(x, hn::ShiftRight<15>(x)), twist_), hn::Set(D(), draw_factors[1]));
    return hn::Xor(x, hn::ShiftRight<16>(x));
  }

  HWY_INLINE hn::Vec<hn::ScalableTag<float>> units() {
    const hn::ScalableTag<float> d;
    const auto high = hn::BitCast(hn::RebindToSigned<D>(), hn::ShiftRight<8>(bits()));
    return hn::Mul(hn::ConvertTo(d, high), hn::Set(d, 0x1p-24f));
  }

 private:
  V at_;
  const V stride_, twist_;
};

}  // namespace HWY_NAMESPACE
}  // namespace thinwire
HWY_AFTER_NAMESPACE();

#endif  // THINWIRE_KERNELS_DRAW_INL_H_
