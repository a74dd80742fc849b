// int8_hwy.cc: blocks of bytes with the widest vectors of the machine.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/int8.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "thinwire/kernels/int8_hwy.cc"
#include <hwy/foreach_target.h>
// After foreach_target, as Highway wants it.
#include <hwy/highway.h>

#include "thinwire/kernels/draw-inl.h"
#include "thinwire/kernels/groups-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if THINWIRE_HAVE_GROUPS

HWY_INLINE Int8Scale ScaleOf(const float* x, std::size_t padded) {
  Floats smallest = hn::LoadU(F32(), x), largest = smallest;
  Ints most = hn::Zero(I32());
  for (std::size_t i = 0; i < padded; i += lanes) {
    const Floats value = hn::LoadU(F32(), x + i);
    smallest = hn::Min(smallest, value);
    largest = hn::Max(largest, value);
    most = hn::Max(most, hn::BitCast(I32(), hn::Abs(value)));
  }
  return int8_scale(hn::GetLane(hn::MinOfLanes(F32(), smallest)),
                    hn::GetLane(hn::MaxOfLanes(F32(), largest)),
                    hn::GetLane(hn::MaxOfLanes(I32(), most)) < 0x7f800000);
}

// Codes of a padded block, and with `rest` what they leave of x.
template <bool random>
HWY_INLINE void Codes(const float* x, std::size_t padded, const Int8Scale& scale, DrawKey key,
                      std::uint32_t first, std::uint8_t* codes, float* rest) {
  const Floats lo = hn::Set(F32(), scale.lo), step = hn::Set(F32(), scale.step);
  const Floats inverse = hn::Set(F32(), scale.inverse), top = hn::Set(F32(), 255.0f);
  Draws draws(key, first);
  for (std::size_t i = 0; i < padded; i += lanes) {
    const Floats value = hn::LoadU(F32(), x + i);
    const Floats place = hn::Min(hn::Mul(hn::Sub(value, lo), inverse), top);
    Ints code;
    if constexpr (random) {
      const Ints below = hn::ConvertTo(I32(), place);
      const auto up = hn::Lt(draws.units(), hn::Sub(place, hn::ConvertTo(F32(), below)));
      code = hn::Sub(below, hn::VecFromMask(I32(), hn::RebindMask(I32(), up)));
    } else {
      code = hn::ConvertTo(I32(), hn::Add(place, hn::Set(F32(), 0.5f)));
    }
    hn::StoreU(hn::DemoteTo(Byte(), code), Byte(), codes + i);
    if (rest != nullptr) {
      const Floats sent = hn::Add(lo, hn::Mul(hn::ConvertTo(F32(), code), step));
      hn::StoreU(hn::Sub(value, sent), F32(), rest + i);
    }
  }
}

HWY_INLINE bool EncodeBlock(const Int8Rule& rule, const float* g, float* v, std::size_t count,
                            DrawKey key, std::uint32_t first, std::uint8_t* out) {
  float room[int8_most];
  std::uint8_t spare[int8_most];
  const float* x = TakeIn(g, v, count, room, true);
  const std::size_t padded = WholeGroups(count);
  const Int8Scale scale = ScaleOf(x, padded);
  int8_store_scale(scale, out);
  std::uint8_t* codes = out + int8_block_header;
  if (!scale.finite) {
    std::memset(codes, 0, count);
    return false;
  }
  std::uint8_t* to = padded == count ? codes : spare;
  float* rest = v == nullptr ? nullptr : padded == count ? v : room;
  if (rule.random) {
    Codes<true>(x, padded, scale, key, first, to, rest);
  } else {
    Codes<false>(x, padded, scale, key, first, to, rest);
  }
  if (to == spare) std::memcpy(codes, spare, count);
  if (rest == room) std::memcpy(v, room, count * sizeof(float));
  return true;
}

bool Int8Encode(const Int8Rule& rule, const float* g, float* v, std::size_t count, DrawKey key,
                std::uint32_t first, std::uint8_t* out) {
  bool finite = true;
  for (std::size_t at = 0; at < count; at += rule.block) {
    const std::size_t size = std::min(rule.block, count - at);
    finite = EncodeBlock(rule, g + at, v == nullptr ? nullptr : v + at, size, key,
                         first + static_cast<std::uint32_t>(at), out) &&
             finite;
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
