// draw-inl.h: the random numbers of draw.h, one vector at a time, for the Highway kernels.
// SPDX-License-Identifier: Apache-2.0
#if defined(THINWIRE_KERNELS_DRAW_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef THINWIRE_KERNELS_DRAW_INL_H_
#undef THINWIRE_KERNELS_DRAW_INL_H_
#else
#define THINWIRE_KERNELS_DRAW_INL_H_
#endif

#include <hwy/highway.h>

#include "thinwire/kernels/draw.h"
#include "thinwire/kernels/groups-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if THINWIRE_HAVE_GROUPS

// The draws of consecutive elements, 32 at a time, as vectors in the order of the elements.
class Draws {
 public:
  using D = hn::ScalableTag<std::uint32_t>;
  using V = hn::Vec<D>;
  static constexpr std::size_t vectors = 32 / lanes;
  static_assert(lanes <= 16, "the two halves of a hash would meet in one vector");

  // `first` is a multiple of 32.
  HWY_INLINE Draws(DrawKey key, std::uint32_t first)
      : at_(hn::Add(hn::Mul(hn::Iota(D(), 0), hn::Set(D(), draw_step)),
                    hn::Set(D(), first / 2 * draw_step + key.start))),
        stride_(hn::Set(D(), static_cast<std::uint32_t>(lanes) * draw_step)),
        twist_(hn::Set(D(), key.twist)) {}

  HWY_INLINE void bits(V* out) {
    for (std::size_t k = 0; k < vectors / 2; ++k) {
      out[k] = hash();
      out[k + vectors / 2] = hn::RotateRight<16>(out[k]);
    }
  }

  // The high 16 bits of the draws.
  HWY_INLINE void high_halves(V* out) {
    for (std::size_t k = 0; k < vectors / 2; ++k) {
      const V x = hash();
      out[k] = hn::ShiftRight<16>(x);
      out[k + vectors / 2] = hn::And(x, hn::Set(D(), 0xffffu));
    }
  }

 private:
  HWY_INLINE V hash() {
    V x = at_;
    at_ = hn::Add(at_, stride_);
    x = hn::Mul(hn::Xor(x, hn::ShiftRight<16>(x)), hn::Set(D(), draw_first_factor));
    x = hn::Mul(hn::Xor(hn::Xor(x, hn::ShiftRight<15>(x)), twist_),
                hn::Set(D(), draw_second_factor));
    return hn::Xor(x, hn::ShiftRight<16>(x));
  }

  V at_;
  const V stride_, twist_;
};

#endif  // THINWIRE_HAVE_GROUPS

}  // namespace HWY_NAMESPACE
}  // namespace thinwire
HWY_AFTER_NAMESPACE();

#endif  // THINWIRE_KERNELS_DRAW_INL_H_
