// groups-inl.h: the parts that the Highway quantisers share: x = g + v, sums, signs as bits, lanes
// as bytes. Local arrays hold whole groups of 64 elements, the last one padded, so that loops over
// them need no tail. Callers' arrays and wire bytes have no padding.
// SPDX-License-Identifier: Apache-2.0
#if defined(THINWIRE_KERNELS_GROUPS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef THINWIRE_KERNELS_GROUPS_INL_H_
#undef THINWIRE_KERNELS_GROUPS_INL_H_
#else
#define THINWIRE_KERNELS_GROUPS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>

#include "thinwire/kernels/limit.h"
#include "thinwire/kernels/norm.h"

// Where vectors have one lane, or a length that is only known at run time, kernels that work on
// groups call their references.
#undef THINWIRE_HAVE_GROUPS
#define THINWIRE_HAVE_GROUPS (!HWY_HAVE_SCALABLE && HWY_TARGET != HWY_SCALAR)

HWY_BEFORE_NAMESPACE();
namespace thinwire {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if THINWIRE_HAVE_GROUPS

using F32 = hn::ScalableTag<float>;
using I32 = hn::RebindToSigned<F32>;
using U64 = hn::ScalableTag<std::uint64_t>;
using Byte = hn::Rebind<std::uint8_t, F32>;  // as many bytes as a vector has floats
using U8 = hn::Repartition<std::uint8_t, F32>;
using Floats = hn::Vec<F32>;
using Ints = hn::Vec<I32>;
using Bytes = hn::Vec<U8>;

inline constexpr std::size_t group = 64;
inline constexpr std::size_t lanes = hn::MaxLanes(F32());
inline constexpr std::size_t vector_bytes = 4 * lanes;

constexpr std::size_t WholeGroups(std::size_t count) { return (count + group - 1) / group * group; }

// limit.h's taken_in().
HWY_INLINE Floats TakenIn(Floats g, Floats v) {
  const auto sound = hn::Le(hn::Abs(g), hn::Set(F32(), gradient_limit));
  return hn::IfThenElse(sound, hn::Add(g, v),
                        hn::Set(F32(), std::numeric_limits<float>::infinity()));
}

// x = g + v (x = g where v is null), padded to whole groups. The result is in `room`, or it is g
// itself where there is nothing to add or pad.
HWY_INLINE const float* TakeIn(const float* g, const float* v, std::size_t count, float* room,
                               bool pad_with_last) {
  if (v == nullptr && count % group == 0) return g;
  std::size_t i = 0;
  if (v == nullptr) {
    std::memcpy(room, g, count * sizeof(float));
    i = count;
  }
  for (; count - i >= lanes; i += lanes)
    hn::StoreU(TakenIn(hn::LoadU(F32(), g + i), hn::LoadU(F32(), v + i)), F32(), room + i);
  for (; i < count; ++i) room[i] = taken_in(g[i], v[i]);
  std::fill(room + count, room + WholeGroups(count), pad_with_last ? room[count - 1] : 0.0f);
  return room;
}

// The sum of the lanes as a tree: the upper half is added to the lower half, and so on.
template <class D>
HWY_INLINE hn::TFromD<D> AddHalves(D /*d*/, hn::Vec<D> v) {
  if constexpr (hn::MaxLanes(D()) == 1) {
    return hn::GetLane(v);
  } else {
    const hn::Half<D> half;
    return AddHalves(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  }
}

// The same for the lanes of several vectors; their number is a power of two.
template <class D, std::size_t count>
HWY_INLINE hn::TFromD<D> AddHalves(D d, hn::Vec<D> (&sums)[count]) {
  for (std::size_t half = count / 2; half > 0; half /= 2) {
    for (std::size_t k = 0; k < half; ++k) sums[k] = hn::Add(sums[k], sums[k + half]);
  }
  return AddHalves(d, sums[0]);
}

// The largest bit pattern of |x|. It is above 0x7f7fffff when an element is not finite.
HWY_INLINE std::int32_t LargestBits(const float* x, std::size_t count) {
  Ints most = hn::Zero(I32());
  for (std::size_t i = 0; i < count; i += lanes)
    most = hn::Max(most, hn::BitCast(I32(), hn::Abs(hn::LoadU(F32(), x + i))));
  return hn::GetLane(hn::MaxOfLanes(I32(), most));
}

// The squared norm in the order of norm.h; `count` is a multiple of 16.
HWY_INLINE double SumSquares(const float* x, std::size_t count) {
  const hn::CappedTag<double, 16> d;
  const hn::Rebind<float, decltype(d)> narrow;
  constexpr std::size_t width = hn::MaxLanes(hn::CappedTag<double, 16>());
  hn::Vec<decltype(d)> part[16 / width];
  for (auto& sum : part) sum = hn::Zero(d);
  for (std::size_t i = 0; i < count; i += 16) {
    for (std::size_t k = 0; k < 16 / width; ++k) {
      const auto wide = hn::PromoteTo(d, hn::LoadU(narrow, x + i + k * width));
      part[k] = hn::Add(part[k], hn::Mul(wide, wide));
    }
  }
  return AddHalves(d, part);
}

// A bit per lane.
HWY_INLINE std::uint64_t WordOf(hn::Mask<I32> mask) {
  std::uint8_t bits[8] = {};
  hn::StoreMaskBits(I32(), mask, bits);
  std::uint64_t word = 0;
  std::memcpy(&word, bits, std::max<std::size_t>(1, lanes / 8));
  return word;
}

// A bit per lane: its sign.
HWY_INLINE std::uint64_t SignsOf(Ints pattern) { return WordOf(hn::Lt(pattern, hn::Zero(I32()))); }

// The signs of a group from lane `first` on, as the sign bits of floats.
HWY_INLINE Floats SignBits(std::uint64_t signs, std::size_t first) {
  std::uint8_t bits[8];
  signs >>= first;
  std::memcpy(bits, &signs, sizeof bits);
  return hn::IfThenElseZero(hn::LoadMaskBits(F32(), bits), hn::Set(F32(), -0.0f));
}

// Writes the signs of a group with `left` elements. Unused bits are zero.
HWY_INLINE void StoreSigns(std::uint64_t signs, std::size_t left, std::uint8_t* at) {
  if (HWY_LIKELY(left >= group)) {
    std::memcpy(at, &signs, sizeof signs);
    return;
  }
  signs &= (std::uint64_t{1} << left) - 1;
  std::memcpy(at, &signs, (left + 7) / 8);
}

// The bits of `yes` where the mask is set, else those of `no`.
template <class V>
HWY_INLINE V Select(V mask, V yes, V no) {
  return hn::Or(hn::And(mask, yes), hn::AndNot(mask, no));
}

// Takes byte 0, 2 or 3 of each lane of four vectors. Every result lane holds those of a, c, b, d.
template <int byte>
HWY_INLINE Bytes MixBytes(Ints a, Ints b, Ints c, Ints d) {
  const hn::Repartition<std::uint16_t, F32> half;
  if constexpr (byte == 0) {
    b = hn::ShiftLeft<16>(b);
    d = hn::ShiftLeft<16>(d);
  } else {
    a = hn::ShiftRight<16>(a);
    c = hn::ShiftRight<16>(c);
  }
  auto ab = hn::OddEven(hn::BitCast(half, b), hn::BitCast(half, a));
  auto cd = hn::OddEven(hn::BitCast(half, d), hn::BitCast(half, c));
  if constexpr (byte == 3) {
    ab = hn::ShiftRight<8>(ab);
  } else {
    cd = hn::ShiftLeft<8>(cd);
  }
  return hn::OddEven(hn::BitCast(U8(), cd), hn::BitCast(U8(), ab));
}

// Puts the result of MixBytes() into the order of the elements: a, then b, c, d.
HWY_INLINE Bytes InOrder(Bytes mixed) {
  HWY_ALIGN static constexpr std::uint8_t by_vector[16] = {0, 4, 8, 12, 2, 6, 10, 14,
                                                           1, 5, 9, 13, 3, 7, 11, 15};
  const auto blocks =
      hn::BitCast(I32(), hn::TableLookupBytes(mixed, hn::LoadDup128(U8(), by_vector)));
  if constexpr (lanes == 4) return hn::BitCast(U8(), blocks);
  HWY_ALIGN std::int32_t from[lanes];
  for (std::size_t k = 0; k < lanes; ++k)
    from[k] = static_cast<std::int32_t>(k % (lanes / 4) * 4 + k / (lanes / 4));
  return hn::BitCast(U8(), hn::TableLookupLanes(blocks, hn::SetTableIndices(I32(), from)));
}

// That byte of every lane of all vectors of a group, in order.
template <int byte>
HWY_INLINE void StoreBytes(const Ints* wide, std::uint8_t* to) {
  for (std::size_t k = 0; k < group / lanes; k += 4) {
    const Bytes mixed = MixBytes<byte>(wide[k], wide[k + 1], wide[k + 2], wide[k + 3]);
    hn::StoreU(InOrder(mixed), U8(), to + k * lanes);
  }
}

#endif  // THINWIRE_HAVE_GROUPS

}  // namespace HWY_NAMESPACE
}  // namespace thinwire
HWY_AFTER_NAMESPACE();

#endif  // THINWIRE_KERNELS_GROUPS_INL_H_
