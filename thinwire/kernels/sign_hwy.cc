// sign_hwy.cc: signs with the widest vectors of the machine, up to sixteen lanes.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/sign.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "thinwire/kernels/sign_hwy.cc"
#include <hwy/foreach_target.h>
// After foreach_target, as Highway wants it.
#include <hwy/highway.h>

#include <algorithm>

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
constexpr std::size_t vectors = 16 / lanes;

// Adds the float sums of a block to the double ones, and clears them.
HWY_INLINE void EndBlock(V* parts, hn::Vec<Wide>* sums) {
  const Wide wide;
  const hn::Half<D> half;
  for (std::size_t k = 0; k < vectors; ++k) {
    sums[2 * k] = hn::Add(sums[2 * k], hn::PromoteTo(wide, hn::LowerHalf(half, parts[k])));
    sums[2 * k + 1] = hn::Add(sums[2 * k + 1], hn::PromoteTo(wide, hn::UpperHalf(half, parts[k])));
    parts[k] = hn::Zero(D());
  }
}

// Sums of sixteen in registers.
struct Side {
  V parts[vectors];
  hn::Vec<Wide> sums[2 * vectors];

  HWY_INLINE void clear() {
    for (V& part : parts) part = hn::Zero(D());
    for (auto& sum : sums) sum = hn::Zero(Wide());
  }
  HWY_INLINE void store(float* part, double* sum) const {
    for (std::size_t k = 0; k < vectors; ++k) hn::StoreU(parts[k], D(), part + k * lanes);
    for (std::size_t k = 0; k < 2 * vectors; ++k) hn::StoreU(sums[k], Wide(), sum + k * lanes / 2);
  }
};

template <bool has_r>
SignSums Scan(const float* g, const float* r, std::size_t count, std::uint8_t* bits) {
  const D d;
  Side high, low;
  high.clear();
  low.clear();
  std::size_t i = 0, at = 0, below = 0;
  while (count - i >= bits_margin) {
    const std::size_t end =
        i + std::min<std::size_t>(128, (count - i - bits_margin) / 16 * 16 + 16);
    at = (end - i) % 128;
    for (; i < end; i += 16) {
      for (std::size_t k = 0; k < vectors; ++k) {
        const V x = SumAt<has_r>(g, r, i + k * lanes);
        const auto is_low = hn::Lt(x, hn::Zero(d));
        StoreBits(d, is_low, bits, i + k * lanes);
        below += hn::CountTrue(d, is_low);
        high.parts[k] = hn::Add(high.parts[k], hn::IfThenZeroElse(is_low, x));
        low.parts[k] = hn::Add(low.parts[k], hn::IfThenElseZero(is_low, x));
      }
    }
    if (at != 0) break;
    EndBlock(high.parts, high.sums);
    EndBlock(low.parts, low.sums);
  }
  SignAccumulator all;
  high.store(all.high_part, all.high);
  low.store(all.low_part, all.low);
  all.at = at;
  all.lows = below;
  all.take(g + i, has_r ? r + i : nullptr, count - i, bits + i / 8);
  return all.sums(g, r, count);
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
