// qsgd_hwy.cc: random levels with the widest vectors of the machine.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/qsgd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "thinwire/kernels/qsgd_hwy.cc"
#include <hwy/foreach_target.h>
// After foreach_target, as Highway wants it.
#include <hwy/highway.h>

#include <bit>
#include <cmath>

#include "thinwire/kernels/draw-inl.h"
#include "thinwire/kernels/groups-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if THINWIRE_HAVE_GROUPS

HWY_INLINE double NormOf(const QsgdRule& rule, const float* x, std::size_t padded) {
  if (!rule.largest) return std::sqrt(SumSquares(x, padded));
  return std::bit_cast<float>(LargestBits(x, padded));
}

// Levels of a padded bucket, and with `rest` what they leave of x.
template <bool has_rest>
HWY_INLINE void Levels(const float* x, std::size_t padded, const QsgdScale& scale, float most,
                       Draws draws, std::uint8_t* levels, float* rest) {
  const Floats inverse = hn::Set(F32(), scale.inverse), unit = hn::Set(F32(), scale.unit);
  const Floats top = hn::Set(F32(), most), sign = hn::Set(F32(), -0.0f);
  for (std::size_t i = 0; i < padded; i += lanes) {
    const Floats value = hn::LoadU(F32(), x + i);
    const Floats place = hn::Min(hn::Mul(hn::Abs(value), inverse), top);
    const Ints below = hn::ConvertTo(I32(), place);
    const auto up = hn::Lt(draws.units(), hn::Sub(place, hn::ConvertTo(F32(), below)));
    const Ints level = hn::Sub(below, hn::VecFromMask(I32(), hn::RebindMask(I32(), up)));
    hn::StoreU(hn::DemoteTo(Byte(), level), Byte(), levels + i);
    if constexpr (has_rest) {
      const Floats sent = hn::Mul(hn::ConvertTo(F32(), level), unit);
      hn::StoreU(hn::Sub(value, hn::Or(sent, hn::And(sign, value))), F32(), rest + i);
    }
  }
}

HWY_INLINE bool Quantise(const QsgdRule& rule, const float* g, float* v, std::size_t count,
                         DrawKey key, std::uint32_t first, float& norm, std::uint8_t* levels,
                         std::uint8_t* signs) {
  float room[qsgd_most];
  const float* x = TakeIn(g, v, count, room, false);
  const std::size_t padded = WholeGroups(count);
  const QsgdScale scale = qsgd_scale(rule, NormOf(rule, x, padded));
  norm = scale.norm;
  if (norm == 0) {
    std::memset(levels, 0, padded);
    std::memset(signs, 0, level_bytes(count, 1));
    if (scale.finite && v != nullptr) std::memcpy(v, x, count * sizeof(float));
    return scale.finite;
  }
  for (std::size_t i = 0; i < count; i += group)
    StoreSigns(SignsOf(x + i), count - i, signs + i / 8);
  const auto most = static_cast<float>((1u << rule.bits) - 1);
  if (v == nullptr) {
    Levels<false>(x, padded, scale, most, Draws(key, first), levels, nullptr);
    return true;
  }
  float* rest = padded == count ? v : room;
  Levels<true>(x, padded, scale, most, Draws(key, first), levels, rest);
  if (rest == room) std::memcpy(v, room, count * sizeof(float));
  return true;
}

bool QsgdQuantise(const QsgdRule& rule, const float* g, float* v, std::size_t count, DrawKey key,
                  std::uint32_t first, float& norm, std::uint8_t* levels, std::uint8_t* signs) {
  return Quantise(rule, g, v, count, key, first, norm, levels, signs);
}

bool QsgdEncode(const QsgdRule& rule, const float* g, float* v, std::size_t count, DrawKey key,
                std::uint32_t first, std::uint8_t* out) {
  bool finite = true;
  std::uint8_t levels[qsgd_most];
  for (std::size_t at = 0; at < count; at += rule.bucket) {
    const std::size_t size = std::min(rule.bucket, count - at);
    float norm = 0;
    finite = Quantise(rule, g + at, v == nullptr ? nullptr : v + at, size, key,
                      first + static_cast<std::uint32_t>(at), norm, levels, out + 4) &&
             finite;
    std::memcpy(out, &norm, 4);
    PackGroups(levels, size, rule.bits, out + 4 + level_bytes(size, 1));
    out += qsgd_bucket_bytes(rule, size);
  }
  return finite;
}

// Levels in whole groups; the last, partial one is done by the reference.
HWY_INLINE void Apply(const QsgdRule& rule, float norm, const std::uint8_t* levels,
                      const std::uint8_t* signs, std::size_t count, float share, float* target) {
  const Floats unit = hn::Set(F32(), qsgd_scale(rule, norm).unit * share);
  std::size_t at = 0;
  for (; count - at >= group; at += group) {
    std::uint64_t word;
    std::memcpy(&word, signs + at / 8, 8);
    for (std::size_t k = 0; k < group; k += lanes) {
      const std::size_t i = at + k;
      const Floats level =
          hn::ConvertTo(F32(), hn::PromoteTo(I32(), hn::LoadU(Byte(), levels + i)));
      const Floats value = hn::Or(hn::Mul(level, unit), SignBits(word, k));
      hn::StoreU(hn::Add(hn::LoadU(F32(), target + i), value), F32(), target + i);
    }
  }
  qsgd_apply_reference(rule, norm, levels + at, signs + at / 8, count - at, share, target + at);
}

void QsgdApply(const QsgdRule& rule, float norm, const std::uint8_t* levels,
               const std::uint8_t* signs, std::size_t count, float share, float* target) {
  Apply(rule, norm, levels, signs, count, share, target);
}

bool QsgdAdd(const QsgdRule& rule, const std::uint8_t* in, std::size_t count, float share,
             float* target) {
  std::uint8_t levels[qsgd_most];
  for (std::size_t at = 0; at < count; at += rule.bucket) {
    const std::size_t size = std::min(rule.bucket, count - at);
    float norm = 0;
    std::memcpy(&norm, in, 4);
    if (!qsgd_norm_is_sound(norm)) return false;
    UnpackGroups(in + 4 + level_bytes(size, 1), size, rule.bits, levels);
    Apply(rule, norm, levels, in + 4, size, share, target + at);
    in += qsgd_bucket_bytes(rule, size);
  }
  return true;
}

#else

bool QsgdQuantise(const QsgdRule& rule, const float* g, float* v, std::size_t count, DrawKey key,
                  std::uint32_t first, float& norm, std::uint8_t* levels, std::uint8_t* signs) {
  return qsgd_quantise_reference(rule, g, v, count, key, first, norm, levels, signs);
}

bool QsgdEncode(const QsgdRule& rule, const float* g, float* v, std::size_t count, DrawKey key,
                std::uint32_t first, std::uint8_t* out) {
  return qsgd_encode_reference(rule, g, v, count, key, first, out);
}

void QsgdApply(const QsgdRule& rule, float norm, const std::uint8_t* levels,
               const std::uint8_t* signs, std::size_t count, float share, float* target) {
  qsgd_apply_reference(rule, norm, levels, signs, count, share, target);
}

bool QsgdAdd(const QsgdRule& rule, const std::uint8_t* in, std::size_t count, float share,
             float* target) {
  return qsgd_add_reference(rule, in, count, share, target);
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace thinwire
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinwire {

HWY_EXPORT(QsgdQuantise);
HWY_EXPORT(QsgdEncode);
HWY_EXPORT(QsgdApply);
HWY_EXPORT(QsgdAdd);

bool qsgd_quantise(const QsgdRule& rule, const float* g, float* v, std::size_t count, DrawKey key,
                   std::uint32_t first, float& norm, std::uint8_t* levels, std::uint8_t* signs) {
  return HWY_DYNAMIC_DISPATCH(QsgdQuantise)(rule, g, v, count, key, first, norm, levels, signs);
}

bool qsgd_encode(const QsgdRule& rule, const float* g, float* v, std::size_t count, DrawKey key,
                 std::uint32_t first, std::uint8_t* out) {
  return HWY_DYNAMIC_DISPATCH(QsgdEncode)(rule, g, v, count, key, first, out);
}

void qsgd_apply(const QsgdRule& rule, float norm, const std::uint8_t* levels,
                const std::uint8_t* signs, std::size_t count, float share, float* target) {
  HWY_DYNAMIC_DISPATCH(QsgdApply)(rule, norm, levels, signs, count, share, target);
}

bool qsgd_add(const QsgdRule& rule, const std::uint8_t* in, std::size_t count, float share,
              float* target) {
  return HWY_DYNAMIC_DISPATCH(QsgdAdd)(rule, in, count, share, target);
}

}  // namespace thinwire
#endif
