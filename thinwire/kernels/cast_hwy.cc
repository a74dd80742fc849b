// cast_hwy.cc: arrays of halves with the widest vectors of the machine. The conversions follow
// core/half.h in integer arithmetic, because CPUs' own conversions treat NaNs differently.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/cast.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "thinwire/kernels/cast_hwy.cc"
#include <hwy/foreach_target.h>
// Highway requires this include after foreach_target.h.
#include <hwy/highway.h>

#include <limits>

HWY_BEFORE_NAMESPACE();
namespace thinwire {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
using I32 = hn::RebindToSigned<F32>;
using U16 = hn::Rebind<std::uint16_t, F32>;
using Floats = hn::Vec<F32>;
using Ints = hn::Vec<I32>;
using Halves = hn::Vec<U16>;

HWY_INLINE Ints SetInt(std::uint32_t bits) {
  return hn::Set(I32(), static_cast<std::int32_t>(bits));
}

// A logical shift, as of unsigned numbers.
template <int bits>
HWY_INLINE Ints ShiftDown(Ints x) {
  const hn::RebindToUnsigned<I32> unsigned_tag;
  return hn::BitCast(I32(), hn::ShiftRight<bits>(hn::BitCast(unsigned_tag, x)));
}

struct F16 {
  static HWY_INLINE Floats Widen(Halves half) {
    const Ints bits = hn::PromoteTo(I32(), half);
    const Ints magnitude = hn::And(bits, SetInt(0x7fff));
    const Ints shifted = hn::ShiftLeft<13>(magnitude);
    // Adds 112 to the exponent, and 112 again where the number is not finite.
    const Ints bias = SetInt(112u << 23);
    const Ints normal = hn::Add(shifted, bias);
    const Ints wide =
        hn::IfThenElse(hn::Gt(magnitude, SetInt(0x7bff)), hn::Add(normal, bias), normal);
    const Floats small = hn::Mul(hn::ConvertTo(F32(), magnitude), hn::Set(F32(), 0x1p-24f));
    const Ints value =
        hn::IfThenElse(hn::Lt(magnitude, SetInt(0x400)), hn::BitCast(I32(), small), wide);
    const Ints sign = hn::ShiftLeft<16>(hn::And(bits, SetInt(0x8000)));
    return hn::BitCast(F32(), hn::Or(value, sign));
  }

  static HWY_INLINE Halves Narrow(Floats value) {
    const Ints bits = hn::BitCast(I32(), value);
    const Ints magnitude = hn::And(bits, SetInt(0x7fffffff));
    const Ints odd = hn::And(hn::ShiftRight<13>(magnitude), SetInt(1));
    Ints half = hn::ShiftRight<13>(hn::Add(hn::Add(magnitude, odd), SetInt(0xfffu - 0x38000000u)));
    const Floats aligned = hn::Add(hn::BitCast(F32(), magnitude), hn::Set(F32(), 0.5f));
    const Ints small = hn::Sub(hn::BitCast(I32(), aligned), SetInt(0x3f000000));
    half = hn::IfThenElse(hn::Lt(magnitude, SetInt(0x38800000)), small, half);
    half = hn::IfThenElse(hn::Gt(magnitude, SetInt(0x477fefff)), SetInt(0x7c00), half);
    const Ints sign = hn::And(ShiftDown<16>(bits), SetInt(0x8000));
    const auto nan = hn::Gt(magnitude, SetInt(0x7f800000));
    return hn::DemoteTo(U16(), hn::IfThenElse(nan, SetInt(0x7e00), hn::Or(half, sign)));
  }
};

struct Bf16 {
  static HWY_INLINE Floats Widen(Halves half) {
    return hn::BitCast(F32(), hn::ShiftLeft<16>(hn::PromoteTo(I32(), half)));
  }

  static HWY_INLINE Halves Narrow(Floats value) {
    const Ints bits = hn::BitCast(I32(), value);
    const Ints top = ShiftDown<16>(bits);
    const Ints odd = hn::And(top, SetInt(1));
    const Ints rounded = ShiftDown<16>(hn::Add(bits, hn::Add(odd, SetInt(0x7fff))));
    const auto nan = hn::Gt(hn::And(bits, SetInt(0x7fffffff)), SetInt(0x7f800000));
    return hn::DemoteTo(U16(), hn::IfThenElse(nan, SetInt(0x7fc0), rounded));
  }
};

// These three return the number of elements done; the reference does the remaining few.
template <typename Half>
HWY_INLINE std::size_t CastTo(const float* x, std::uint16_t* out, std::size_t count, float factor) {
  const std::size_t lanes = hn::Lanes(F32());
  const Floats scale = hn::Set(F32(), factor);
  std::size_t i = 0;
  for (; count - i >= lanes; i += lanes) {
    hn::StoreU(Half::Narrow(hn::Mul(hn::LoadU(F32(), x + i), scale)), U16(), out + i);
  }
  return i;
}

template <typename Half>
HWY_INLINE std::size_t CastFrom(const std::uint16_t* x, float* out, std::size_t count, float factor,
                                bool& all_finite) {
  const std::size_t lanes = hn::Lanes(F32());
  const Floats scale = hn::Set(F32(), factor);
  const Floats infinity = hn::Set(F32(), std::numeric_limits<float>::infinity());
  auto finite = hn::Lt(hn::Zero(F32()), infinity);
  std::size_t i = 0;
  for (; count - i >= lanes; i += lanes) {
    const Floats value = hn::Mul(Half::Widen(hn::LoadU(U16(), x + i)), scale);
    finite = hn::And(finite, hn::Lt(hn::Abs(value), infinity));
    hn::StoreU(value, F32(), out + i);
  }
  all_finite = hn::AllTrue(F32(), finite);
  return i;
}

template <typename Half>
HWY_INLINE std::size_t AddHalves(std::uint16_t* into, const std::uint16_t* from,
                                 std::size_t count) {
  const std::size_t lanes = hn::Lanes(F32());
  std::size_t i = 0;
  for (; count - i >= lanes; i += lanes) {
    const Floats sum =
        hn::Add(Half::Widen(hn::LoadU(U16(), into + i)), Half::Widen(hn::LoadU(U16(), from + i)));
    hn::StoreU(Half::Narrow(sum), U16(), into + i);
  }
  return i;
}

void CastToF16(const float* x, std::uint16_t* out, std::size_t count, float factor) {
  const std::size_t i = CastTo<F16>(x, out, count, factor);
  cast_to_f16_reference(x + i, out + i, count - i, factor);
}

void CastToBf16(const float* x, std::uint16_t* out, std::size_t count, float factor) {
  const std::size_t i = CastTo<Bf16>(x, out, count, factor);
  cast_to_bf16_reference(x + i, out + i, count - i, factor);
}

bool CastFromF16(const std::uint16_t* x, float* out, std::size_t count, float factor) {
  bool finite = true;
  const std::size_t i = CastFrom<F16>(x, out, count, factor, finite);
  return cast_from_f16_reference(x + i, out + i, count - i, factor) && finite;
}

bool CastFromBf16(const std::uint16_t* x, float* out, std::size_t count, float factor) {
  bool finite = true;
  const std::size_t i = CastFrom<Bf16>(x, out, count, factor, finite);
  return cast_from_bf16_reference(x + i, out + i, count - i, factor) && finite;
}

void AddF16(std::uint16_t* into, const std::uint16_t* from, std::size_t count) {
  const std::size_t i = AddHalves<F16>(into, from, count);
  add_f16_reference(into + i, from + i, count - i);
}

void AddBf16(std::uint16_t* into, const std::uint16_t* from, std::size_t count) {
  const std::size_t i = AddHalves<Bf16>(into, from, count);
  add_bf16_reference(into + i, from + i, count - i);
}

}  // namespace HWY_NAMESPACE
}  // namespace thinwire
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinwire {

HWY_EXPORT(CastToF16);
HWY_EXPORT(CastToBf16);
HWY_EXPORT(CastFromF16);
HWY_EXPORT(CastFromBf16);
HWY_EXPORT(AddF16);
HWY_EXPORT(AddBf16);

void cast_to_f16(const float* x, std::uint16_t* out, std::size_t count, float factor) {
  HWY_DYNAMIC_DISPATCH(CastToF16)(x, out, count, factor);
}

void cast_to_bf16(const float* x, std::uint16_t* out, std::size_t count, float factor) {
  HWY_DYNAMIC_DISPATCH(CastToBf16)(x, out, count, factor);
}

bool cast_from_f16(const std::uint16_t* x, float* out, std::size_t count, float factor) {
  return HWY_DYNAMIC_DISPATCH(CastFromF16)(x, out, count, factor);
}

bool cast_from_bf16(const std::uint16_t* x, float* out, std::size_t count, float factor) {
  return HWY_DYNAMIC_DISPATCH(CastFromBf16)(x, out, count, factor);
}

void add_f16(std::uint16_t* into, const std::uint16_t* from, std::size_t count) {
  HWY_DYNAMIC_DISPATCH(AddF16)(into, from, count);
}

void add_bf16(std::uint16_t* into, const std::uint16_t* from, std::size_t count) {
  HWY_DYNAMIC_DISPATCH(AddBf16)(into, from, count);
}

}  // namespace thinwire
#endif
