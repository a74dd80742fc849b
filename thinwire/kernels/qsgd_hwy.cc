// qsgd_hwy.cc: random levels with the widest vectors of the machine.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/qsgd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "thinwire/kernels/qsgd_hwy.cc"
#include <hwy/foreach_target.h>
// Highway requires this include after foreach_target.h.
#include <hwy/highway.h>

#include <bit>
#include <cmath>

#include "thinwire/kernels/draw-inl.h"
#include "thinwire/kernels/groups-inl.h"
#include "thinwire/kernels/packing-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if THINWIRE_HAVE_GROUPS

HWY_INLINE double L2Norm(const float* x, std::size_t padded) {
  constexpr std::size_t vectors = 32 / lanes;
  Floats sums[vectors];
  for (Floats& sum : sums) sum = hn::Zero(F32());
  for (std::size_t i = 0; i < padded; i += 32) {
    for (std::size_t k = 0; k < vectors; ++k) {
      const Floats value = hn::LoadU(F32(), x + i + k * lanes);
      sums[k] = hn::Add(sums[k], hn::Mul(value, value));
    }
  }
  const float sum = AddHalves(F32(), sums);
  return qsgd_sum_is_sound(sum) ? std::sqrt(sum) : std::sqrt(SumSquares(x, padded));
}

HWY_INLINE double NormOf(const QsgdRule& rule, const float* x, std::size_t padded) {
  if (!rule.largest) return L2Norm(x, padded);
  return std::bit_cast<float>(LargestBits(x, padded));
}

// Computes the levels of 32 elements, each in byte 2 of its lane, and with `rest` the rounding
// errors. Returns the signs.
template <bool byte_levels, bool has_rest>
HWY_INLINE std::uint64_t Levels32(const float* x, Floats inverse, Floats unit, Draws& draws,
                                  Ints* levels, float* rest) {
  const Floats rounder = hn::Set(F32(), qsgd_rounder), sign = hn::Set(F32(), -0.0f);
  Draws::V draw[Draws::vectors];
  draws.high_halves(draw);
  std::uint64_t signs = 0;
  for (std::size_t k = 0; k < Draws::vectors; ++k) {
    const Floats value = hn::LoadU(F32(), x + k * lanes);
    signs |= SignsOf(hn::BitCast(I32(), value)) << (k * lanes);
    Ints place = hn::BitCast(I32(), hn::Add(hn::Mul(hn::Abs(value), inverse), rounder));
    if constexpr (byte_levels) place = hn::ShiftLeft<1>(place);
    levels[k] = hn::Add(place, hn::BitCast(I32(), draw[k]));
    if constexpr (has_rest) {
      const Ints level = hn::And(hn::ShiftRight<16>(levels[k]), hn::Set(I32(), 255));
      const Floats sent = hn::Mul(hn::ConvertTo(F32(), level), unit);
      hn::StoreU(hn::Sub(value, hn::Or(sent, hn::And(sign, value))), F32(), rest + k * lanes);
    }
  }
  return signs;
}

// Levels and signs of a padded bucket.
template <bool byte_levels, bool has_rest>
HWY_INLINE void Levels(const float* x, std::size_t count, const QsgdScale& scale, Draws draws,
                       std::uint8_t* levels, std::uint8_t* signs, float* rest) {
  constexpr std::size_t half = group / 2;
  const Floats inverse = hn::Set(F32(), scale.inverse), unit = hn::Set(F32(), scale.unit);
  for (std::size_t i = 0; i < count; i += group) {
    Ints wide[group / lanes];
    std::uint64_t word =
        Levels32<byte_levels, has_rest>(x + i, inverse, unit, draws, wide, rest + i);
    word |= Levels32<byte_levels, has_rest>(x + i + half, inverse, unit, draws, wide + half / lanes,
                                            rest + i + half)
            << half;
    StoreBytes<2>(wide, levels + i);
    StoreSigns(word, count - i, signs + i / 8);
  }
}

// One bucket: x in whole groups, its residual, scratch memory of that size, and its scale.
struct Part {
  const float* x;
  float *v, *room;
  std::size_t count;
  QsgdScale scale;
  const float* g;
};

HWY_INLINE Part Measure(const QsgdRule& rule, const float* g, float* v, std::size_t count,
                        float* room) {
  const float* x = TakeIn(g, v, count, room, false);
  return {x, v, room, count, qsgd_scale(rule, NormOf(rule, x, WholeGroups(count))), g};
}

template <bool byte_levels>
HWY_INLINE void AllLevels(const Part& part, const Draws& draws, std::uint8_t* levels,
                          std::uint8_t* signs) {
  if (part.v == nullptr) {
    Levels<byte_levels, false>(part.x, part.count, part.scale, draws, levels, signs, part.room);
    return;
  }
  float* rest = part.count % group == 0 ? part.v : part.room;
  Levels<byte_levels, true>(part.x, part.count, part.scale, draws, levels, signs, rest);
  if (rest == part.room) std::memcpy(part.v, part.room, part.count * sizeof(float));
}

HWY_INLINE bool Quantise(const QsgdRule& rule, const Part& part, DrawKey key, std::uint32_t first,
                         std::uint8_t* levels, std::uint8_t* signs) {
  if (part.scale.norm == 0) {
    std::memset(levels, 0, WholeGroups(part.count));
    std::memset(signs, 0, level_bytes(part.count, 1));
    if (part.scale.finite && part.v != nullptr)
      std::memcpy(part.v, part.x, part.count * sizeof(float));
    if (!part.scale.finite && part.v != nullptr) add_within_limit(part.g, part.v, part.count);
    return part.scale.finite;
  }
  const Draws draws(key, first);
  if (rule.bits == 8) {
    AllLevels<true>(part, draws, levels, signs);
  } else {
    AllLevels<false>(part, draws, levels, signs);
  }
  return true;
}

bool QsgdQuantise(const QsgdRule& rule, const float* g, float* v, std::size_t count, DrawKey key,
                  std::uint32_t first, float& norm, std::uint8_t* levels, std::uint8_t* signs) {
  float room[qsgd_most];
  const Part part = Measure(rule, g, v, count, room);
  norm = part.scale.norm;
  return Quantise(rule, part, key, first, levels, signs);
}

bool QsgdEncode(const QsgdRule& rule, const float* g, float* v, std::size_t count, DrawKey key,
                std::uint32_t first, std::uint8_t* out) {
  bool finite = true;
  const Packer packer(rule.bits);
  const std::uint8_t* end = out + qsgd_bytes(rule, count);
  float room[qsgd_most];
  HWY_ALIGN std::uint8_t levels[qsgd_most];
  for (std::size_t at = 0; at < count; at += rule.bucket) {
    const std::size_t size = std::min(rule.bucket, count - at);
    const Part part = Measure(rule, g + at, v == nullptr ? nullptr : v + at, size, room);
    std::memcpy(out, &part.scale.norm, 4);
    finite = Quantise(rule, part, key, first + static_cast<std::uint32_t>(at), levels, out + 4) &&
             finite;
    packer.pack(levels, size, out + 4 + level_bytes(size, 1), end);
    out += qsgd_bucket_bytes(rule, size);
  }
  return finite;
}

// Adds the levels of whole groups. The reference does the last, partial group.
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
  const Unpacker unpacker(rule.bits);
  const std::uint8_t* end = in + qsgd_bytes(rule, count);
  HWY_ALIGN std::uint8_t levels[qsgd_most];
  for (std::size_t at = 0; at < count; at += rule.bucket) {
    const std::size_t size = std::min(rule.bucket, count - at);
    float norm = 0;
    std::memcpy(&norm, in, 4);
    if (!qsgd_bucket_is_sound(rule, in, size)) return false;
    unpacker.unpack(in + 4 + level_bytes(size, 1), end, size, levels);
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
