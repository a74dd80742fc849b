// mask_bits-inl.h: converts vector masks to bits in memory and back, lowest bit first, for every
// vector width. Only *_hwy.cc files include it, once per target.
// SPDX-License-Identifier: Apache-2.0
#if defined(THINWIRE_KERNELS_MASK_BITS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef THINWIRE_KERNELS_MASK_BITS_INL_H_
#undef THINWIRE_KERNELS_MASK_BITS_INL_H_
#else
#define THINWIRE_KERNELS_MASK_BITS_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>
#include <cstring>

HWY_BEFORE_NAMESPACE();
namespace thinwire {
namespace HWY_NAMESPACE {

// Elements per iteration of such loops.
constexpr std::size_t bits_block = 32;

// Highway may write eight bytes where a mask fills fewer. So these loops run only while 64 elements
// are left: the bytes after a mask then belong to this call, which overwrites them later.
constexpr std::size_t bits_margin = 64;

// The bits of a vector whose first lane is element `at`.
template <class D>
HWY_INLINE void StoreBits(D d, hwy::HWY_NAMESPACE::Mask<D> mask, std::uint8_t* bits,
                          std::size_t at) {
  namespace hn = hwy::HWY_NAMESPACE;
  if constexpr (hn::MaxLanes(D()) >= 8) {
    hn::StoreMaskBits(d, mask, bits + at / 8);
  } else {
    std::uint8_t few[8];
    hn::StoreMaskBits(d, mask, few);
    const unsigned before = at % 8 == 0 ? 0 : bits[at / 8];
    bits[at / 8] = static_cast<std::uint8_t>(before | unsigned{few[0]} << at % 8);
  }
}

// The 32 bits from element `at` (a multiple of 8) on.
HWY_INLINE std::uint32_t LoadBits(const std::uint8_t* bits, std::size_t at) {
  std::uint32_t word = 0;
  std::memcpy(&word, bits + at / 8, sizeof word);
  return word;
}

// The mask of a vector whose first lane is bit `from` of the word.
template <class D>
HWY_INLINE hwy::HWY_NAMESPACE::Mask<D> MaskFromBits(D d, std::uint32_t word, std::size_t from) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::RebindToUnsigned<D> du;
  const auto bit = hn::Shl(hn::Set(du, 1u), hn::Iota(du, 0));
  return hn::RebindMask(d, hn::TestBit(hn::Set(du, word >> from), bit));
}

}  // namespace HWY_NAMESPACE
}  // namespace thinwire
HWY_AFTER_NAMESPACE();

#endif
