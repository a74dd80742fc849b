// groups-inl.h: what the Highway quantisers share: x = g + v, signs and small numbers as streams of
// bits. Local arrays hold whole groups of 64 elements, the last one padded, so that no loop over them
// has a tail; arrays of callers and bytes on the wire are exact.
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

#include "thinwire/kernels/levels.h"
#include "thinwire/kernels/norm.h"

// Where vectors have one lane, or a length that is only known at run time, kernels that work on
// groups leave everything to their references.
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
using Floats = hn::Vec<F32>;
using Ints = hn::Vec<I32>;

inline constexpr std::size_t group = 64;
inline constexpr std::size_t lanes = hn::MaxLanes(F32());

constexpr std::size_t WholeGroups(std::size_t count) { return (count + group - 1) / group * group; }

// x = g + v, or g where v is null, padded to whole groups: in `room`, or g itself where nothing is
// to be added or padded.
HWY_INLINE const float* TakeIn(const float* g, const float* v, std::size_t count, float* room,
                               bool pad_with_last) {
  if (v == nullptr && count % group == 0) return g;
  std::size_t i = 0;
  if (v == nullptr) {
    std::memcpy(room, g, count * sizeof(float));
    i = count;
  }
  for (; count - i >= lanes; i += lanes)
    hn::StoreU(hn::Add(hn::LoadU(F32(), g + i), hn::LoadU(F32(), v + i)), F32(), room + i);
  for (; i < count; ++i) room[i] = g[i] + v[i];
  std::fill(room + count, room + WholeGroups(count), pad_with_last ? room[count - 1] : 0.0f);
  return room;
}

// The largest bit pattern of |x|: above 0x7f7fffff where something is not finite.
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
  double sums[16];
  for (std::size_t k = 0; k < 16 / width; ++k) hn::StoreU(part[k], d, sums + k * width);
  return add_sums(sums);
}

// A bit per lane: its sign.
HWY_INLINE std::uint64_t SignsOf(Ints pattern) {
  std::uint8_t bits[8] = {};
  hn::StoreMaskBits(I32(), hn::Lt(pattern, hn::Zero(I32())), bits);
  std::uint64_t signs = 0;
  std::memcpy(&signs, bits, std::max<std::size_t>(1, lanes / 8));
  return signs;
}

// A bit per element of the group at x.
HWY_INLINE std::uint64_t SignsOf(const float* x) {
  std::uint64_t signs = 0;
  for (std::size_t i = 0; i < group; i += lanes)
    signs |= SignsOf(hn::BitCast(I32(), hn::LoadU(F32(), x + i))) << i;
  return signs;
}

// The lanes from `first` on of a group's signs, as the sign bits of floats.
HWY_INLINE Floats SignBits(std::uint64_t signs, std::size_t first) {
  std::uint8_t bits[8];
  signs >>= first;
  std::memcpy(bits, &signs, sizeof bits);
  return hn::IfThenElseZero(hn::LoadMaskBits(F32(), bits), hn::Set(F32(), -0.0f));
}

// Writes the signs of a group of which `left` elements are there; the unused bits are zero.
HWY_INLINE void StoreSigns(std::uint64_t signs, std::size_t left, std::uint8_t* at) {
  if (left < group) signs &= (std::uint64_t{1} << left) - 1;
  std::memcpy(at, &signs, (std::min(left, group) + 7) / 8);
}

constexpr std::uint64_t Repeat(std::uint64_t field, unsigned width) {
  std::uint64_t word = 0;
  for (unsigned at = 0; at < 64; at += width) word |= field << at;
  return word;
}

// Levels to a stream of bits. In each word eight bytes move together in three steps: pairs, fours,
// all.
HWY_INLINE void PackGroups(const std::uint8_t* levels, std::size_t count, unsigned bits,
                           std::uint8_t* out) {
  const U64 d;
  const std::uint8_t* end = out + level_bytes(count, bits);
  const auto step = [&](hn::Vec<U64> x, unsigned half) HWY_ATTR {
    const auto low = hn::Set(d, Repeat((std::uint64_t{1} << half) - 1, 2 * half));
    const int shift = static_cast<int>(half - half / 8 * bits);
    return hn::Or(hn::And(x, low), hn::ShiftRightSame(hn::AndNot(low, x), shift));
  };
  for (std::size_t i = 0; i < count; i += group, out += 8 * bits) {
    HWY_ALIGN std::uint64_t words[8];
    for (std::size_t k = 0; k < 8; k += hn::Lanes(d)) {
      const auto bytes = hn::LoadU(hn::Repartition<std::uint8_t, U64>(), levels + i + 8 * k);
      hn::Store(step(step(step(hn::BitCast(d, bytes), 8), 16), 32), d, words + k);
    }
    std::uint8_t whole[72];
    const auto room = static_cast<std::size_t>(end - out);
    std::uint8_t* to = room >= 72 ? out : whole;
    for (std::size_t k = 0; k < 8; ++k) std::memcpy(to + k * bits, words + k, 8);
    if (to == whole) std::memcpy(out, whole, std::min<std::size_t>(room, 8 * bits));
  }
}

// The way back; reads up to `end`.
HWY_INLINE void UnpackGroups(const std::uint8_t* in, std::size_t count, unsigned bits,
                             std::uint8_t* levels) {
  const U64 d;
  const std::uint8_t* end = in + level_bytes(count, bits);
  const auto step = [&](hn::Vec<U64> x, unsigned half) HWY_ATTR {
    const unsigned width = half / 8 * bits;
    const std::uint64_t field = Repeat((std::uint64_t{1} << width) - 1, 2 * half);
    const auto high = hn::ShiftLeftSame(x, static_cast<int>(half - width));
    return hn::Or(hn::And(x, hn::Set(d, field)), hn::And(high, hn::Set(d, field << half)));
  };
  for (std::size_t i = 0; i < count; i += group, in += 8 * bits) {
    std::uint8_t whole[72] = {};
    const auto room = static_cast<std::size_t>(end - in);
    const std::uint8_t* from = room >= 72 ? in : whole;
    if (from == whole) std::memcpy(whole, in, std::min<std::size_t>(room, 8 * bits));
    HWY_ALIGN std::uint64_t words[8];
    for (std::size_t k = 0; k < 8; ++k) std::memcpy(words + k, from + k * bits, 8);
    for (std::size_t k = 0; k < 8; k += hn::Lanes(d)) {
      const auto bytes = step(step(step(hn::Load(d, words + k), 32), 16), 8);
      hn::StoreU(hn::BitCast(hn::Repartition<std::uint8_t, U64>(), bytes),
                 hn::Repartition<std::uint8_t, U64>(), levels + i + 8 * k);
    }
  }
}

#endif  // THINWIRE_HAVE_GROUPS

}  // namespace HWY_NAMESPACE
}  // namespace thinwire
HWY_AFTER_NAMESPACE();

#endif  // THINWIRE_KERNELS_GROUPS_INL_H_
