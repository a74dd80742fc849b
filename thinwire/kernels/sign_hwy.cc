// sign_hwy.cc: signs with the widest vectors of the machine, up to sixteen lanes.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/sign.h"

#include "thinwire/kernels/norm.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "thinwire/kernels/sign_hwy.cc"
#include <hwy/foreach_target.h>
// After foreach_target, as Highway wants it.
#include <hwy/highway.h>

#include "thinwire/kernels/mask_bits-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::CappedTag<float, 16>;
using V = hn::Vec<D>;

template <bool has_r>
HWY_INLINE V SumAt(const float* g, const float* r, std::size_t i) {
  const D d;
  if constexpr (has_r) return hn::Add(hn::LoadU(d, g + i), hn::LoadU(d, r + i));
  return hn::LoadU(d, g + i);
}

// Vectors of a size unknown to the compiler cannot form an array, and one lane has no halves; there
// the plain sums do it.
#if HWY_HAVE_SCALABLE || HWY_TARGET == HWY_SCALAR

template <bool has_r>
SignSums Scan(const float* g, const float* r, std::size_t count, std::uint8_t* bits) {
  return sign_scan_reference(g, r, count, bits);
}

#else

using Wide = hn::CappedTag<double, 16>;
constexpr std::size_t lanes = hn::MaxLanes(D());
constexpr std::size_t wide_lanes = lanes / 2;
constexpr std::size_t vectors = 16 / lanes;

// Adds a vector of floats to its two vectors of sums.
HWY_INLINE void AddWide(V x, hn::Vec<Wide>* sums) {
  const Wide wide;
  const hn::Half<D> half;
  sums[0] = hn::Add(sums[0], hn::PromoteTo(wide, hn::LowerHalf(half, x)));
  sums[1] = hn::Add(sums[1], hn::PromoteTo(wide, hn::UpperHalf(half, x)));
}

template <bool has_r>
SignSums Scan(const float* g, const float* r, std::size_t count, std::uint8_t* bits) {
  const D d;
  hn::Vec<Wide> high[2 * vectors], low[2 * vectors];
  for (std::size_t k = 0; k < 2 * vectors; ++k) high[k] = low[k] = hn::Zero(Wide());
  std::size_t i = 0, negative = 0;
  for (; count - i >= bits_margin; i += 16) {
    for (std::size_t k = 0; k < vectors; ++k) {
      const V x = SumAt<has_r>(g, r, i + k * lanes);
      const auto is_low = hn::Lt(x, hn::Zero(d));
      StoreBits(d, is_low, bits, i + k * lanes);
      negative += hn::CountTrue(d, is_low);
      AddWide(hn::IfThenZeroElse(is_low, x), high + 2 * k);
      AddWide(hn::IfThenElseZero(is_low, x), low + 2 * k);
    }
  }
  double highs[16], lows[16];
  for (std::size_t k = 0; k < 2 * vectors; ++k) {
    hn::StoreU(high[k], Wide(), highs + k * wide_lanes);
    hn::StoreU(low[k], Wide(), lows + k * wide_lanes);
  }
  negative += sign_scan_into(g + i, has_r ? r + i : nullptr, count - i, bits + i / 8, highs, lows);
  return {add_sums(highs), add_sums(lows), negative};
}

#endif

SignSums SignScan(const float* g, const float* r, std::size_t count, std::uint8_t* bits) {
  return r == nullptr ? Scan<false>(g, r, count, bits) : Scan<true>(g, r, count, bits);
}

void SignSettle(const float* HWY_RESTRICT g, float* HWY_RESTRICT r, std::size_t count, float high,
                float low) {
  const D d;
  const std::size_t lanes = hn::Lanes(d);
  const V above = hn::Set(d, high), below = hn::Set(d, low);
  std::size_t i = 0;
  for (; count - i >= lanes; i += lanes) {
    const V x = SumAt<true>(g, r, i);
    const V sent = hn::IfThenElse(hn::Lt(x, hn::Zero(d)), below, above);
    hn::StoreU(hn::Sub(x, sent), d, r + i);
  }
  sign_settle_reference(g + i, r + i, count - i, high, low);
}

void SignAdd(const std::uint8_t* HWY_RESTRICT bits, std::size_t count, float high, float low,
             float* HWY_RESTRICT target) {
  const D d;
  const std::size_t lanes = hn::Lanes(d);
  const V above = hn::Set(d, high), below = hn::Set(d, low);
  std::size_t i = 0;
  for (; count - i >= bits_block; i += bits_block) {
    const std::uint32_t word = LoadBits(bits, i);
    for (std::size_t k = 0; k < bits_block; k += lanes) {
      const V value = hn::IfThenElse(MaskFromBits(d, word, k), below, above);
      hn::StoreU(hn::Add(hn::LoadU(d, target + i + k), value), d, target + i + k);
    }
  }
  sign_add_reference(bits + i / 8, count - i, high, low, target + i);
}

}  // namespace HWY_NAMESPACE
}  // namespace thinwire
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinwire {

HWY_EXPORT(SignScan);
HWY_EXPORT(SignSettle);
HWY_EXPORT(SignAdd);

SignSums sign_scan(const float* g, const float* r, std::size_t count, std::uint8_t* bits) {
  return HWY_DYNAMIC_DISPATCH(SignScan)(g, r, count, bits);
}

void sign_settle(const float* g, float* r, std::size_t count, float high, float low) {
  HWY_DYNAMIC_DISPATCH(SignSettle)(g, r, count, high, low);
}

void sign_add(const std::uint8_t* bits, std::size_t count, float high, float low, float* target) {
  HWY_DYNAMIC_DISPATCH(SignAdd)(bits, count, high, low, target);
}

}  // namespace thinwire
#endif
