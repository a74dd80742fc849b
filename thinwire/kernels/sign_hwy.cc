// sign_hwy.cc: signs with the widest vectors of the machine, up to sixteen lanes.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/sign.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "thinwire/kernels/sign_hwy.cc"
#include <hwy/foreach_target.h>
// Highway requires this include after foreach_target.h.
#include <hwy/highway.h>

#include <cmath>

#include "thinwire/kernels/groups-inl.h"
#include "thinwire/kernels/mask_bits-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::CappedTag<float, 16>;
using V = hn::Vec<D>;

#if THINWIRE_HAVE_GROUPS

constexpr std::size_t vectors = 16 / lanes;

// Sixteen sums of one side in registers.
struct Side {
  using Wide = hn::CappedTag<double, 16>;
  V parts[vectors];
  hn::Vec<Wide> sums[2 * vectors];

  HWY_INLINE Side() {
    for (V& part : parts) part = hn::Zero(D());
    for (auto& sum : sums) sum = hn::Zero(Wide());
  }
  // Adds the float sums of a block to the double ones, and clears them.
  HWY_INLINE void end_block() {
    const Wide wide;
    const hn::Half<D> half;
    for (std::size_t k = 0; k < vectors; ++k) {
      const auto lower = hn::PromoteTo(wide, hn::LowerHalf(half, parts[k]));
      const auto upper = hn::PromoteTo(wide, hn::UpperHalf(half, parts[k]));
      sums[2 * k] = hn::Add(sums[2 * k], lower);
      sums[2 * k + 1] = hn::Add(sums[2 * k + 1], upper);
      parts[k] = hn::Zero(D());
    }
  }
};

// Adds a group; returns its bits.
template <bool has_r>
HWY_INLINE std::uint64_t Take(const float* g, const float* r, Side& high, Side& low) {
  const D d;
  std::uint64_t word = 0;
  for (std::size_t i = 0; i < group; i += 16) {
    for (std::size_t k = 0; k < vectors; ++k) {
      V x = hn::LoadU(d, g + i + k * lanes);
      if constexpr (has_r) x = TakenIn(x, hn::LoadU(d, r + i + k * lanes));
      const auto is_low = hn::Lt(x, hn::Zero(d));
      word |= WordOf(hn::RebindMask(I32(), is_low)) << (i + k * lanes);
      high.parts[k] = hn::Add(high.parts[k], hn::IfThenZeroElse(is_low, x));
      low.parts[k] = hn::Add(low.parts[k], hn::IfThenElseZero(is_low, x));
    }
  }
  return word;
}

template <bool has_r>
SignSums Scan(const float* g, const float* r, std::size_t count, std::uint8_t* bits) {
  Side high, low;
  std::size_t i = 0, lows = 0;
  for (; count - i >= group; i += group) {
    const std::uint64_t word = Take<has_r>(g + i, has_r ? r + i : nullptr, high, low);
    std::memcpy(bits + i / 8, &word, sizeof word);
    lows += hwy::PopCount(word);
    if (i % 128 != 0) {
      high.end_block();
      low.end_block();
    }
  }
  if (i < count) {  // the zeros after the end change no sum and set no bit
    float x[group];
    TakeIn(g + i, has_r ? r + i : nullptr, count - i, x, false);
    const std::uint64_t word = Take<false>(x, nullptr, high, low);
    std::memcpy(bits + i / 8, &word, (count - i + 7) / 8);
    lows += hwy::PopCount(word);
  }
  high.end_block();
  low.end_block();
  const Side::Wide wide;
  const SignSums sums{AddHalves(wide, high.sums), AddHalves(wide, low.sums), lows};
  const bool finite = std::isfinite(sums.high) && std::isfinite(sums.low);
  return finite ? sums : sign_scan_reference(g, r, count, bits);
}

#else

template <bool has_r>
SignSums Scan(const float* g, const float* r, std::size_t count, std::uint8_t* bits) {
  return sign_scan_reference(g, r, count, bits);
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
    const V x = hn::Add(hn::LoadU(d, g + i), hn::LoadU(d, r + i));
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
