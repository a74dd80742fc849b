// int8_hwy.cc: blocks of bytes with the widest vectors of the machine.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/int8.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "thinwire/kernels/int8_hwy.cc"
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

// Computes x of a block in whole groups (in `room`, unless it is g itself) and its scale.
template <bool has_v>
HWY_INLINE Int8Scale Survey(const float* g, const float* v, std::size_t padded, float* room) {
  Floats smallest = hn::LoadU(F32(), g), largest;
  if constexpr (has_v) smallest = TakenIn(smallest, hn::LoadU(F32(), v));
  largest = smallest;
  Ints most = hn::Zero(I32());
  for (std::size_t i = 0; i < padded; i += lanes) {
    Floats value = hn::LoadU(F32(), g + i);
    if constexpr (has_v) {
      value = TakenIn(value, hn::LoadU(F32(), v + i));
      hn::StoreU(value, F32(), room + i);
    }
    smallest = hn::Min(smallest, value);
    largest = hn::Max(largest, value);
    most = hn::Max(most, hn::BitCast(I32(), hn::Abs(value)));
  }
  return int8_scale(hn::GetLane(hn::MinOfLanes(F32(), smallest)),
                    hn::GetLane(hn::MaxOfLanes(F32(), largest)),
                    hn::GetLane(hn::MaxOfLanes(I32(), most)) < 0x7f800000);
}

// Writes the codes of whole groups, and with `rest` the rounding errors.
template <bool random, bool has_rest>
HWY_INLINE void Codes(const float* x, std::size_t padded, const Int8Scale& scale, DrawKey key,
                      std::uint32_t first, std::uint8_t* codes, float* rest) {
  const Floats lo = hn::Set(F32(), scale.lo), step = hn::Set(F32(), scale.step);
  const Floats inverse = hn::Set(F32(), scale.inverse), rounder = hn::Set(F32(), int8_rounder);
  Draws draws(key, first);
  for (std::size_t i = 0; i < padded; i += group) {
    [[maybe_unused]] Draws::V draw[2 * Draws::vectors];
    if constexpr (random) {
      draws.high_halves(draw);
      draws.high_halves(draw + Draws::vectors);
    }
    Ints wide[group / lanes];
    for (std::size_t k = 0; k < group / lanes; ++k) {
      const Floats value = hn::LoadU(F32(), x + i + k * lanes);
      Floats place = hn::Mul(hn::Sub(value, lo), inverse);
      if constexpr (random)
        place = hn::Mul(hn::Min(place, hn::Set(F32(), 255.0f)), hn::Set(F32(), 0x1p15f));
      wide[k] = hn::BitCast(I32(), hn::Add(place, rounder));
      if constexpr (random)
        wide[k] =
            hn::ShiftRight<16>(hn::Add(hn::ShiftLeft<1>(wide[k]), hn::BitCast(I32(), draw[k])));
      if constexpr (has_rest) {
        const Floats code = hn::ConvertTo(F32(), hn::And(wide[k], hn::Set(I32(), 255)));
        const Floats sent = hn::Add(lo, hn::Mul(code, step));
        hn::StoreU(hn::Sub(value, sent), F32(), rest + i + k * lanes);
      }
    }
    StoreBytes<0>(wide, codes + i);
  }
}

// One block: x in whole groups, its residual, scratch memory of that size, and its scale.
struct Part {
  const float* x;
  float *v, *room;
  std::size_t count;
  Int8Scale scale;
};

HWY_INLINE Part Measure(const float* g, float* v, std::size_t count, float* room) {
  const std::size_t padded = WholeGroups(count);
  if (v != nullptr && padded == count)
    return {room, v, room, count, Survey<true>(g, v, padded, room)};
  const float* x = TakeIn(g, v, count, room, true);
  return {x, v, room, count, Survey<false>(x, nullptr, padded, nullptr)};
}

template <bool random>
HWY_INLINE void AllCodes(const Part& part, DrawKey key, std::uint32_t first, std::uint8_t* codes) {
  const bool whole = part.count % group == 0;
  std::uint8_t spare[int8_most];
  std::uint8_t* to = whole ? codes : spare;
  float* rest = whole ? part.v : part.room;
  if (part.v == nullptr) {
    Codes<random, false>(part.x, WholeGroups(part.count), part.scale, key, first, to, rest);
  } else {
    Codes<random, true>(part.x, WholeGroups(part.count), part.scale, key, first, to, rest);
  }
  if (whole) return;
  std::copy_n(spare, std::min(part.count, int8_most), codes);
  if (part.v != nullptr) std::memcpy(part.v, part.room, part.count * sizeof(float));
}

HWY_INLINE bool EncodePart(const Int8Rule& rule, const Part& part, DrawKey key, std::uint32_t first,
                           std::uint8_t* out) {
  int8_store_scale(part.scale, out);
  std::uint8_t* codes = out + int8_block_header;
  if (!part.scale.finite) {
    std::memset(codes, 0, part.count);
  } else if (rule.random) {
    AllCodes<true>(part, key, first, codes);
  } else {
    AllCodes<false>(part, key, first, codes);
  }
  return part.scale.finite;
}

bool Int8Encode(const Int8Rule& rule, const float* g, float* v, std::size_t count, DrawKey key,
                std::uint32_t first, std::uint8_t* out) {
  bool finite = true;
  float room[int8_most];
  for (std::size_t at = 0; at < count; at += rule.block) {
    const std::size_t size = std::min(rule.block, count - at);
    const Part part = Measure(g + at, v == nullptr ? nullptr : v + at, size, room);
    if (!EncodePart(rule, part, key, first + static_cast<std::uint32_t>(at), out)) {
      if (v != nullptr) add_within_limit(g + at, v + at, size);
      finite = false;
    }
    out += int8_block_header + size;
  }
  return finite;
}

bool Int8Add(const Int8Rule& rule, const std::uint8_t* in, std::size_t count, float share,
             float* target) {
  for (std::size_t at = 0; at < count; at += rule.block) {
    const Int8Scale scale = int8_load_scale(in, share);
    if (!scale.finite) return false;
    in += int8_block_header;
    const std::size_t size = std::min(rule.block, count - at);
    const Floats lo = hn::Set(F32(), scale.lo), step = hn::Set(F32(), scale.step);
    std::size_t i = 0;
    for (; size - i >= lanes; i += lanes) {
      const Floats code = hn::ConvertTo(F32(), hn::PromoteTo(I32(), hn::LoadU(Byte(), in + i)));
      const Floats sum =
          hn::Add(hn::LoadU(F32(), target + at + i), hn::Add(lo, hn::Mul(code, step)));
      hn::StoreU(sum, F32(), target + at + i);
    }
    for (; i < size; ++i) target[at + i] += scale.lo + static_cast<float>(in[i]) * scale.step;
    in += size;
  }
  return true;
}

#else

bool Int8Encode(const Int8Rule& rule, const float* g, float* v, std::size_t count, DrawKey key,
                std::uint32_t first, std::uint8_t* out) {
  return int8_encode_reference(rule, g, v, count, key, first, out);
}

bool Int8Add(const Int8Rule& rule, const std::uint8_t* in, std::size_t count, float share,
             float* target) {
  return int8_add_reference(rule, in, count, share, target);
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace thinwire
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinwire {

HWY_EXPORT(Int8Encode);
HWY_EXPORT(Int8Add);

bool int8_encode(const Int8Rule& rule, const float* g, float* v, std::size_t count, DrawKey key,
                 std::uint32_t first, std::uint8_t* out) {
  return HWY_DYNAMIC_DISPATCH(Int8Encode)(rule, g, v, count, key, first, out);
}

bool int8_add(const Int8Rule& rule, const std::uint8_t* in, std::size_t count, float share,
              float* target) {
  return HWY_DYNAMIC_DISPATCH(Int8Add)(rule, in, count, share, target);
}

}  // namespace thinwire
#endif
