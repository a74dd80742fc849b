// terngrad_hwy.cc: random signs with the widest vectors of the machine.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/terngrad.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "thinwire/kernels/terngrad_hwy.cc"
#include <hwy/foreach_target.h>
// Highway requires this include after foreach_target.h.
#include <hwy/highway.h>

#include <algorithm>
#include <bit>

#include "thinwire/kernels/draw-inl.h"
#include "thinwire/kernels/groups-inl.h"
#include "thinwire/kernels/norm.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if THINWIRE_HAVE_GROUPS

// The squares of one block of norm.h; `most` gets the patterns of the magnitudes.
template <class V>
HWY_INLINE double SquaresOf(const float* x, std::size_t count, V& most) {
  const hn::CappedTag<double, norm_sums> d;
  const hn::Rebind<float, decltype(d)> narrow;
  const hn::RebindToSigned<decltype(narrow)> pattern;
  constexpr std::size_t width = hn::MaxLanes(hn::CappedTag<double, norm_sums>());
  hn::Vec<decltype(d)> part[norm_sums / width];
  for (auto& sum : part) sum = hn::Zero(d);
  std::size_t i = 0;
  for (; count - i >= norm_sums; i += norm_sums) {
    for (std::size_t k = 0; k < norm_sums / width; ++k) {
      const auto value = hn::LoadU(narrow, x + i + k * width);
      most = hn::Max(most, hn::BitCast(pattern, hn::Abs(value)));
      const auto wide = hn::PromoteTo(d, value);
      part[k] = hn::Add(part[k], hn::Mul(wide, wide));
    }
  }
  double sums[norm_sums];
  for (std::size_t k = 0; k < norm_sums / width; ++k) hn::StoreU(part[k], d, sums + k * width);
  for (std::size_t k = 0; i < count; ++i, ++k) {
    const double value = x[i];
    sums[k] += value * value;
    most = hn::Max(most, hn::Set(pattern, std::bit_cast<std::int32_t>(x[i]) & 0x7fffffff));
  }
  return add_tree<norm_sums>(sums);
}

LayerStatistics TernGradStatistics(const float* x, std::size_t count) {
  const hn::Rebind<std::int32_t, hn::CappedTag<double, norm_sums>> pattern;
  auto most = hn::Zero(pattern);
  PairwiseSum squares;
  for (std::size_t at = 0; at < count; at += norm_block)
    squares.add(SquaresOf(x + at, std::min(norm_block, count - at), most));
  const std::int32_t largest = hn::GetLane(hn::MaxOfLanes(pattern, most));
  return {squares.total(), std::bit_cast<float>(largest), largest < 0x7f800000};
}

// How the elements of a layer are quantised.
struct Chances {
  Floats inverse, clip;

  HWY_INLINE Chances(float scale, float most)
      : inverse(hn::Set(F32(), terngrad_inverse(scale))), clip(hn::Set(F32(), most)) {}
};

// Quantises a group: per element a byte 1 (sent), 2 (negative) or 3 (both), in MixBytes() order.
HWY_INLINE void Choose(const float* x, const Chances& chances, Draws& draws, Bytes* choices) {
  Draws::V draw[2 * Draws::vectors];
  draws.bits(draw);
  draws.bits(draw + Draws::vectors);
  Ints wide[group / lanes];
  for (std::size_t k = 0; k < group / lanes; ++k) {
    const Floats value = hn::LoadU(F32(), x + k * lanes);
    const Floats chance = hn::Mul(hn::Min(hn::Abs(value), chances.clip), chances.inverse);
    const Ints places = hn::BitCast(I32(), hn::Add(chance, hn::Set(F32(), terngrad_rounder)));
    const Ints sum =
        hn::Add(places, hn::BitCast(I32(), hn::ShiftRight<32 - terngrad_places>(draw[k])));
    // Moves bit 22 of the sum below the sign. The other bits of that byte are dropped later.
    const Ints sign = hn::ShiftRight<8>(hn::BitCast(I32(), value));
    wide[k] = Select(hn::Set(I32(), 1 << terngrad_places), sum, sign);
  }
  const hn::Repartition<std::uint16_t, F32> half;
  for (std::size_t k = 0; k < group / lanes; k += 4) {
    const Bytes mixed = MixBytes<2>(wide[k], wide[k + 1], wide[k + 2], wide[k + 3]);
    const Bytes moved = hn::BitCast(U8(), hn::ShiftRight<6>(hn::BitCast(half, mixed)));
    choices[k / 4] = hn::And(moved, hn::Set(U8(), 3));
  }
}

// A lookup table: one byte for positive and one for negative elements that are sent, else 0.
HWY_INLINE Bytes Meaning(std::uint8_t positive, std::uint8_t negative) {
  HWY_ALIGN const std::uint8_t table[16] = {0, positive, 0, negative};
  return hn::LoadDup128(U8(), table);
}

void TernGradQuantise(const float* x, std::size_t count, float scale, float clip, DrawKey key,
                      std::uint32_t first, std::int8_t* out) {
  // Draws come in blocks of 32 elements. Elements before the first block are done one by one.
  std::size_t i = std::min<std::size_t>(count, -first % 32);
  terngrad_quantise_reference(x, i, scale, clip, key, first, out);
  Draws draws(key, first + static_cast<std::uint32_t>(i));
  const Chances chances(scale, clip);
  const Bytes values = Meaning(1, 0xff);
  for (; count - i >= group; i += group) {
    Bytes choices[group / vector_bytes];
    Choose(x + i, chances, draws, choices);
    for (std::size_t k = 0; k < group / vector_bytes; ++k)
      hn::StoreU(InOrder(hn::TableLookupBytes(values, choices[k])), U8(),
                 reinterpret_cast<std::uint8_t*>(out) + i + k * vector_bytes);
  }
  terngrad_quantise_reference(x + i, count - i, scale, clip, key,
                              first + static_cast<std::uint32_t>(i), out + i);
}

void TernGradEncode(const float* x, std::size_t count, float scale, float clip, DrawKey key,
                    std::uint32_t first, std::uint8_t* out) {
  Draws draws(key, first);
  const Chances chances(scale, clip);
  const Bytes digits[] = {Meaning(1, 2), Meaning(3, 6), Meaning(9, 18), Meaning(27, 54),
                          Meaning(81, 162)};
  for (std::size_t at = 0; at < count; at += terngrad_group, out += group) {
    Bytes sums[group / vector_bytes];
    for (Bytes& sum : sums) sum = hn::Zero(U8());
    for (std::size_t row = 0; row < 5; ++row) {
      Bytes choices[group / vector_bytes];
      Choose(x + at + row * group, chances, draws, choices);
      for (std::size_t k = 0; k < group / vector_bytes; ++k)
        sums[k] = hn::Add(sums[k], hn::TableLookupBytes(digits[row], choices[k]));
    }
    for (std::size_t k = 0; k < group / vector_bytes; ++k)
      hn::StoreU(InOrder(sums[k]), U8(), out + k * vector_bytes);
  }
}

// Horner's rule on whole vectors of bytes, the highest digit first.
void TernGradPack(const std::int8_t* values, std::size_t count, std::uint8_t* out) {
  const hn::CappedTag<std::uint8_t, 64> d;
  const hn::RebindToSigned<decltype(d)> ds;
  std::size_t at = 0;
  for (; count - at >= terngrad_group; at += terngrad_group, out += 64) {
    for (std::size_t j = 0; j < 64; j += hn::Lanes(d)) {
      auto byte = hn::Zero(d);
      for (std::size_t k = 5; k-- > 0;) {
        const auto value = hn::BitCast(d, hn::LoadU(ds, values + at + k * 64 + j));
        // -1 is 255: its two low bits are 3, its digit is 2.
        const auto digit = hn::Min(hn::And(value, hn::Set(d, 3)), hn::Set(d, 2));
        byte = hn::Add(hn::Add(byte, hn::Add(byte, byte)), digit);
      }
      hn::StoreU(byte, d, out + j);
    }
  }
  terngrad_pack_reference(values + at, count - at, out);
}

bool TernGradAdd(const std::uint8_t* in, std::size_t count, std::int16_t* sums) {
  const hn::CappedTag<std::int16_t, 64> d;
  const hn::RebindToUnsigned<decltype(d)> du;
  const hn::Rebind<std::uint8_t, decltype(d)> byte;
  auto most = hn::Zero(d);
  std::size_t at = 0;
  for (; count - at >= terngrad_group; at += terngrad_group, in += 64) {
    for (std::size_t j = 0; j < 64; j += hn::Lanes(d)) {
      auto rest = hn::PromoteTo(d, hn::LoadU(byte, in + j));
      most = hn::Max(most, rest);
      for (std::size_t k = 0; k < 5; ++k) {
        // Divides by three, rounded down: 171 / 512 is exact enough for bytes. The product needs 16
        // bits.
        const auto product = hn::BitCast(du, hn::Mul(rest, hn::Set(d, 171)));
        const auto third = hn::BitCast(d, hn::ShiftRight<9>(product));
        const auto digit = hn::Sub(rest, hn::Add(third, hn::Add(third, third)));
        const auto upper = hn::ShiftRight<1>(digit);
        const auto value = hn::Sub(digit, hn::Add(upper, hn::Add(upper, upper)));
        std::int16_t* sum = sums + at + k * 64 + j;
        hn::StoreU(hn::Add(hn::LoadU(d, sum), value), d, sum);
        rest = third;
      }
    }
  }
  return terngrad_add_reference(in, count - at, sums + at) &&
         hn::GetLane(hn::MaxOfLanes(d, most)) < 243;
}

#else

LayerStatistics TernGradStatistics(const float* x, std::size_t count) {
  return layer_statistics_reference(x, count);
}

void TernGradQuantise(const float* x, std::size_t count, float scale, float clip, DrawKey key,
                      std::uint32_t first, std::int8_t* out) {
  terngrad_quantise_reference(x, count, scale, clip, key, first, out);
}

void TernGradPack(const std::int8_t* values, std::size_t count, std::uint8_t* out) {
  terngrad_pack_reference(values, count, out);
}

void TernGradEncode(const float* x, std::size_t count, float scale, float clip, DrawKey key,
                    std::uint32_t first, std::uint8_t* out) {
  terngrad_encode_reference(x, count, scale, clip, key, first, out);
}

bool TernGradAdd(const std::uint8_t* in, std::size_t count, std::int16_t* sums) {
  return terngrad_add_reference(in, count, sums);
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace thinwire
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinwire {

HWY_EXPORT(TernGradStatistics);
HWY_EXPORT(TernGradQuantise);
HWY_EXPORT(TernGradPack);
HWY_EXPORT(TernGradEncode);
HWY_EXPORT(TernGradAdd);

LayerStatistics layer_statistics(const float* x, std::size_t count) {
  return HWY_DYNAMIC_DISPATCH(TernGradStatistics)(x, count);
}

void terngrad_quantise(const float* x, std::size_t count, float scale, float clip, DrawKey key,
                       std::uint32_t first, std::int8_t* out) {
  HWY_DYNAMIC_DISPATCH(TernGradQuantise)(x, count, scale, clip, key, first, out);
}

void terngrad_pack(const std::int8_t* values, std::size_t count, std::uint8_t* out) {
  HWY_DYNAMIC_DISPATCH(TernGradPack)(values, count, out);
}

void terngrad_encode(const float* x, std::size_t count, float scale, float clip, DrawKey key,
                     std::uint32_t first, std::uint8_t* out) {
  HWY_DYNAMIC_DISPATCH(TernGradEncode)(x, count, scale, clip, key, first, out);
}

bool terngrad_add(const std::uint8_t* in, std::size_t count, std::int16_t* sums) {
  return HWY_DYNAMIC_DISPATCH(TernGradAdd)(in, count, sums);
}

}  // namespace thinwire
#endif
