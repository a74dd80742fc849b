// natural_hwy.cc: powers of two with the widest vectors of the machine.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/natural.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "thinwire/kernels/natural_hwy.cc"
#include <hwy/foreach_target.h>
// Highway requires this include after foreach_target.h.
#include <hwy/highway.h>

#include "thinwire/kernels/draw-inl.h"
#include "thinwire/kernels/groups-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if THINWIRE_HAVE_GROUPS

// Codes whole groups, so that signs fill whole words. Returns the number of elements done.
template <bool has_v>
HWY_INLINE std::size_t EncodeGroups(const float* HWY_RESTRICT g, float* HWY_RESTRICT v,
                                    std::size_t count, DrawKey key, std::uint32_t first,
                                    std::uint8_t* HWY_RESTRICT exponents,
                                    std::uint8_t* HWY_RESTRICT signs, bool& finite) {
  const Ints magnitude = hn::Set(I32(), 0x7fffffff), largest = hn::Set(I32(), 0x7f7fffff);
  const Ints top = hn::Set(I32(), 254 << 23);
  Draws draws(key, first);
  finite = true;
  std::size_t at = 0;
  for (; count - at >= group; at += group) {
    Draws::V draw[2 * Draws::vectors];
    draws.bits(draw);
    draws.bits(draw + Draws::vectors);
    Ints wide[group / lanes], most = hn::Zero(I32());
    [[maybe_unused]] Floats rest[group / lanes];
    std::uint64_t word = 0;
    for (std::size_t k = 0; k < group / lanes; ++k) {
      const std::size_t i = at + k * lanes;
      Floats x = hn::LoadU(F32(), g + i);
      if constexpr (has_v) x = TakenIn(x, hn::LoadU(F32(), v + i));
      const Ints pattern = hn::BitCast(I32(), x), bits = hn::And(pattern, magnitude);
      most = hn::Max(most, bits);
      word |= SignsOf(pattern) << (k * lanes);
      const Ints power =
          hn::Min(hn::Add(bits, hn::BitCast(I32(), hn::ShiftRight<9>(draw[k]))), top);
      wide[k] = hn::ShiftLeft<1>(power);
      if constexpr (has_v) {
        const Ints mantissa = hn::Set(I32(), 0x7fffff);
        const Ints sent = hn::Or(hn::AndNot(mantissa, power), hn::AndNot(magnitude, pattern));
        rest[k] = hn::Sub(x, hn::BitCast(F32(), sent));
      }
    }
    if (HWY_UNLIKELY(!hn::AllFalse(I32(), hn::Gt(most, largest)))) {
      natural_encode_reference(g + at, has_v ? v + at : nullptr, group, key,
                               first + static_cast<std::uint32_t>(at), exponents + at,
                               signs + at / 8);
      finite = false;
      continue;
    }
    StoreBytes<3>(wide, exponents + at);
    std::memcpy(signs + at / 8, &word, 8);
    if constexpr (has_v) {
      for (std::size_t k = 0; k < group / lanes; ++k)
        hn::StoreU(rest[k], F32(), v + at + k * lanes);
    }
  }
  return at;
}

bool NaturalEncode(const float* g, float* v, std::size_t count, DrawKey key, std::uint32_t first,
                   std::uint8_t* exponents, std::uint8_t* signs) {
  bool finite = true;
  const std::size_t i = v == nullptr
                            ? EncodeGroups<false>(g, v, count, key, first, exponents, signs, finite)
                            : EncodeGroups<true>(g, v, count, key, first, exponents, signs, finite);
  return natural_encode_reference(g + i, v == nullptr ? nullptr : v + i, count - i, key,
                                  first + static_cast<std::uint32_t>(i), exponents + i,
                                  signs + i / 8) &&
         finite;
}

bool NaturalAdd(const std::uint8_t* exponents, const std::uint8_t* signs, std::size_t count,
                float share, float* target) {
  const Floats factor = hn::Set(F32(), share);
  Ints most = hn::Zero(I32());
  std::size_t at = 0;
  for (; count - at >= group; at += group) {
    std::uint64_t word;
    std::memcpy(&word, signs + at / 8, 8);
    for (std::size_t k = 0; k < group; k += lanes) {
      const std::size_t i = at + k;
      const Ints field = hn::PromoteTo(I32(), hn::LoadU(Byte(), exponents + i));
      most = hn::Max(most, field);
      const Floats value = hn::Or(hn::BitCast(F32(), hn::ShiftLeft<23>(field)), SignBits(word, k));
      hn::StoreU(hn::Add(hn::LoadU(F32(), target + i), hn::Mul(value, factor)), F32(), target + i);
    }
  }
  return natural_add_reference(exponents + at, signs + at / 8, count - at, share, target + at) &&
         hn::GetLane(hn::MaxOfLanes(I32(), most)) < 255;
}

#else

bool NaturalEncode(const float* g, float* v, std::size_t count, DrawKey key, std::uint32_t first,
                   std::uint8_t* exponents, std::uint8_t* signs) {
  return natural_encode_reference(g, v, count, key, first, exponents, signs);
}

bool NaturalAdd(const std::uint8_t* exponents, const std::uint8_t* signs, std::size_t count,
                float share, float* target) {
  return natural_add_reference(exponents, signs, count, share, target);
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace thinwire
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinwire {

HWY_EXPORT(NaturalEncode);
HWY_EXPORT(NaturalAdd);

bool natural_encode(const float* g, float* v, std::size_t count, DrawKey key, std::uint32_t first,
                    std::uint8_t* exponents, std::uint8_t* signs) {
  return HWY_DYNAMIC_DISPATCH(NaturalEncode)(g, v, count, key, first, exponents, signs);
}

bool natural_add(const std::uint8_t* exponents, const std::uint8_t* signs, std::size_t count,
                 float share, float* target) {
  return HWY_DYNAMIC_DISPATCH(NaturalAdd)(exponents, signs, count, share, target);
}

}  // namespace thinwire
#endif
