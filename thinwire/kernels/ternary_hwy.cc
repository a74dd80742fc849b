// ternary_hwy.cc: random signs with the widest vectors of the machine.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/ternary.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "thinwire/kernels/ternary_hwy.cc"
#include <hwy/foreach_target.h>
// After foreach_target, as Highway wants it.
#include <hwy/highway.h>

#include <algorithm>
#include <bit>

#include "thinwire/kernels/draw-inl.h"
#include "thinwire/kernels/groups-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if THINWIRE_HAVE_GROUPS

LayerStatistics TernaryStatistics(const float* x, std::size_t count) {
  const hn::CappedTag<double, 16> d;
  const hn::Rebind<float, decltype(d)> narrow;
  const hn::RebindToSigned<decltype(narrow)> pattern;
  constexpr std::size_t width = hn::MaxLanes(hn::CappedTag<double, 16>());
  hn::Vec<decltype(d)> part[16 / width];
  for (auto& sum : part) sum = hn::Zero(d);
  auto most = hn::Zero(pattern);
  std::size_t i = 0;
  for (; count - i >= 16; i += 16) {
    for (std::size_t k = 0; k < 16 / width; ++k) {
      const auto value = hn::LoadU(narrow, x + i + k * width);
      most = hn::Max(most, hn::BitCast(pattern, hn::Abs(value)));
      const auto wide = hn::PromoteTo(d, value);
      part[k] = hn::Add(part[k], hn::Mul(wide, wide));
    }
  }
  double sums[16];
  for (std::size_t k = 0; k < 16 / width; ++k) hn::StoreU(part[k], d, sums + k * width);
  add_squares(x + i, count - i, sums);
  std::int32_t largest = hn::GetLane(hn::MaxOfLanes(pattern, most));
  for (; i < count; ++i)
    largest = std::max(largest, std::bit_cast<std::int32_t>(x[i]) & 0x7fffffff);
  return {add_sums(sums), std::bit_cast<float>(largest), largest < 0x7f800000};
}

void TernaryQuantise(const float* x, std::size_t count, float scale, float clip, DrawKey key,
                     std::uint32_t first, std::int8_t* out) {
  const hn::Rebind<std::int8_t, F32> byte;
  const Floats range = hn::Set(F32(), scale), top = hn::Set(F32(), clip);
  const Ints one = hn::Set(I32(), 1);
  Draws draws(key, first);
  std::size_t i = 0;
  for (; count - i >= lanes; i += lanes) {
    const Floats value = hn::LoadU(F32(), x + i);
    const auto sent = hn::Lt(hn::Mul(draws.units(), range), hn::Min(hn::Abs(value), top));
    // -1 or 1: the sign bit, spread over the lane, with the lowest bit set.
    const Ints sign = hn::Or(hn::ShiftRight<31>(hn::BitCast(I32(), value)), one);
    const Ints code = hn::IfThenElseZero(hn::RebindMask(I32(), sent), sign);
    hn::StoreU(hn::DemoteTo(byte, code), byte, out + i);
  }
  ternary_quantise_reference(x + i, count - i, scale, clip, key,
                             first + static_cast<std::uint32_t>(i), out + i);
}

// Horner's rule on whole vectors of bytes, the highest digit first.
void TernaryPack(const std::int8_t* values, std::size_t count, std::uint8_t* out) {
  const hn::CappedTag<std::uint8_t, 64> d;
  const hn::RebindToSigned<decltype(d)> ds;
  std::size_t at = 0;
  for (; count - at >= ternary_group; at += ternary_group, out += 64) {
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
  ternary_pack_reference(values + at, count - at, out);
}

bool TernaryAdd(const std::uint8_t* in, std::size_t count, std::int16_t* sums) {
  const hn::CappedTag<std::int16_t, 64> d;
  const hn::RebindToUnsigned<decltype(d)> du;
  const hn::Rebind<std::uint8_t, decltype(d)> byte;
  auto most = hn::Zero(d);
  std::size_t at = 0;
  for (; count - at >= ternary_group; at += ternary_group, in += 64) {
    for (std::size_t j = 0; j < 64; j += hn::Lanes(d)) {
      auto rest = hn::PromoteTo(d, hn::LoadU(byte, in + j));
      most = hn::Max(most, rest);
      for (std::size_t k = 0; k < 5; ++k) {
        // A third, rounded down: 171 / 512 is near enough for bytes. The product needs 16 bits.
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
  return ternary_add_reference(in, count - at, sums + at) &&
         hn::GetLane(hn::MaxOfLanes(d, most)) < 243;
}

#else

LayerStatistics TernaryStatistics(const float* x, std::size_t count) {
  return layer_statistics_reference(x, count);
}

void TernaryQuantise(const float* x, std::size_t count, float scale, float clip, DrawKey key,
                     std::uint32_t first, std::int8_t* out) {
  ternary_quantise_reference(x, count, scale, clip, key, first, out);
}

void TernaryPack(const std::int8_t* values, std::size_t count, std::uint8_t* out) {
  ternary_pack_reference(values, count, out);
}

bool TernaryAdd(const std::uint8_t* in, std::size_t count, std::int16_t* sums) {
  return ternary_add_reference(in, count, sums);
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace thinwire
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinwire {

HWY_EXPORT(TernaryStatistics);
HWY_EXPORT(TernaryQuantise);
HWY_EXPORT(TernaryPack);
HWY_EXPORT(TernaryAdd);

LayerStatistics layer_statistics(const float* x, std::size_t count) {
  return HWY_DYNAMIC_DISPATCH(TernaryStatistics)(x, count);
}

void ternary_quantise(const float* x, std::size_t count, float scale, float clip, DrawKey key,
                      std::uint32_t first, std::int8_t* out) {
  HWY_DYNAMIC_DISPATCH(TernaryQuantise)(x, count, scale, clip, key, first, out);
}

void ternary_pack(const std::int8_t* values, std::size_t count, std::uint8_t* out) {
  HWY_DYNAMIC_DISPATCH(TernaryPack)(values, count, out);
}

bool ternary_add(const std::uint8_t* in, std::size_t count, std::int16_t* sums) {
  return HWY_DYNAMIC_DISPATCH(TernaryAdd)(in, count, sums);
}

}  // namespace thinwire
#endif
