// packing-inl.h: converts levels of 1 to 8 bits to a bit stream and back (levels.h), one vector at
// a time, for the Highway kernels.
// SPDX-License-Identifier: Apache-2.0
#if defined(THINWIRE_KERNELS_PACKING_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef THINWIRE_KERNELS_PACKING_INL_H_
#undef THINWIRE_KERNELS_PACKING_INL_H_
#else
#define THINWIRE_KERNELS_PACKING_INL_H_
#endif

#include "thinwire/kernels/groups-inl.h"
#include "thinwire/kernels/levels.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if THINWIRE_HAVE_GROUPS

constexpr std::uint64_t Repeat(std::uint64_t field, unsigned width) {
  std::uint64_t word = 0;
  for (unsigned at = 0; at < 64; at += width) word |= field << at;
  return word;
}

// The 16-byte blocks of a vector, `stride` bytes apart.
template <class D>
HWY_INLINE hn::Vec<D> LoadBlocks(D d, const std::uint8_t* from, std::size_t stride) {
  if constexpr (hn::MaxLanes(D()) <= 16) {
    return hn::LoadU(d, from);
  } else {
    const hn::Half<D> half;
    return hn::Combine(d, LoadBlocks(half, from + hn::MaxLanes(half) / 16 * stride, stride),
                       LoadBlocks(half, from, stride));
  }
}

template <class D>
HWY_INLINE void StoreBlocks(D d, hn::Vec<D> v, std::uint8_t* to, std::size_t stride) {
  if constexpr (hn::MaxLanes(D()) <= 16) {
    hn::StoreU(v, d, to);
  } else {
    const hn::Half<D> half;
    StoreBlocks(half, hn::LowerHalf(half, v), to, stride);
    StoreBlocks(half, hn::UpperHalf(half, v), to + hn::MaxLanes(half) / 16 * stride, stride);
  }
}

// Packs levels into a bit stream. The eight bytes of each word are joined in three steps: pairs,
// fours, all. Bits above the fields are garbage; the next step or the shuffle drops them.
class Packer {
 public:
  HWY_INLINE explicit Packer(unsigned bits) : bits_(bits) {
    for (unsigned k = 0; k < 3; ++k) {
      const unsigned half = 8u << k, kept = bits << k;
      low_[k] = hn::Set(U64(), Repeat((std::uint64_t{1} << kept) - 1, 2 * half));
      shift_[k] = static_cast<int>(half - kept);
    }
    HWY_ALIGN std::uint8_t from[16];
    for (unsigned i = 0; i < 16; ++i)
      from[i] = static_cast<std::uint8_t>(i < bits ? i : i < 2 * bits ? 8 + i - bits : 0x80);
    close_ = hn::LoadDup128(U8(), from);
  }

  // Levels come in whole groups with zero padding. Bytes after the result, up to `end`, may be
  // overwritten: they are written later.
  HWY_INLINE void pack(const std::uint8_t* levels, std::size_t count, std::uint8_t* out,
                       const std::uint8_t* end) const {
    if (bits_ == 8) {
      std::memcpy(out, levels, count);
      return;
    }
    const std::size_t step = vector_bytes / 8 * bits_;
    std::size_t left = level_bytes(count, bits_);
    for (; left > 0; levels += vector_bytes, out += step, left -= std::min(step, left)) {
      if (HWY_LIKELY(static_cast<std::size_t>(end - out) >= vector_bytes)) {
        pack_vector(levels, out);
      } else {
        std::uint8_t whole[vector_bytes];
        pack_vector(levels, whole);
        std::memcpy(out, whole, std::min(step, left));
      }
    }
  }

 private:
  HWY_INLINE void pack_vector(const std::uint8_t* levels, std::uint8_t* out) const {
    auto words = hn::BitCast(U64(), hn::LoadU(U8(), levels));
    for (std::size_t k = 0; k < 3; ++k)
      words = Select(low_[k], words, hn::ShiftRightSame(words, shift_[k]));
    // In ascending order, so that each block overwrites the zeros after the previous one.
    StoreBlocks(U8(), hn::TableLookupBytes(hn::BitCast(U8(), words), close_), out, 2 * bits_);
  }

  unsigned bits_;
  hn::Vec<U64> low_[3];  // mask of the lower field of each pair
  int shift_[3];         // shift of the upper field of each pair
  Bytes close_;          // shuffle that joins the bytes of a block's two words
};

// Unpacks levels from a bit stream.
class Unpacker {
 public:
  HWY_INLINE explicit Unpacker(unsigned bits) : bits_(bits) {
    for (unsigned k = 0; k < 3; ++k) {
      const unsigned half = 32u >> k;
      low_[k] = hn::Set(U64(), Repeat((std::uint64_t{1} << half) - 1, 2 * half));
      shift_[k] = static_cast<int>(half - half / 8 * bits);
    }
    HWY_ALIGN std::uint8_t from[16];
    for (unsigned i = 0; i < 16; ++i)
      from[i] = static_cast<std::uint8_t>(i % 8 < bits ? i / 8 * bits + i % 8 : 0x80);
    open_ = hn::LoadDup128(U8(), from);
    field_ = hn::Set(U8(), static_cast<std::uint8_t>((1u << bits) - 1));
  }

  // Writes whole vectors. Bytes up to `end` are readable; there are at least level_bytes(count,
  // bits).
  HWY_INLINE void unpack(const std::uint8_t* in, const std::uint8_t* end, std::size_t count,
                         std::uint8_t* levels) const {
    if (bits_ == 8) {
      std::memcpy(levels, in, count);
      return;
    }
    const std::size_t step = vector_bytes / 8 * bits_;
    for (std::size_t i = 0; i < count; i += vector_bytes, in += step) {
      const auto there = static_cast<std::size_t>(end - in);
      if (HWY_LIKELY(there >= vector_bytes)) {
        unpack_vector(in, levels + i);
      } else {
        std::uint8_t whole[vector_bytes] = {};
        std::memcpy(whole, in, there);
        unpack_vector(whole, levels + i);
      }
    }
  }

 private:
  HWY_INLINE void unpack_vector(const std::uint8_t* in, std::uint8_t* levels) const {
    auto words = hn::BitCast(U64(), hn::TableLookupBytes(LoadBlocks(U8(), in, 2 * bits_), open_));
    for (std::size_t k = 0; k < 3; ++k)
      words = Select(low_[k], words, hn::ShiftLeftSame(words, shift_[k]));
    hn::StoreU(hn::And(hn::BitCast(U8(), words), field_), U8(), levels);
  }

  unsigned bits_;
  hn::Vec<U64> low_[3];
  int shift_[3];
  Bytes open_, field_;
};

#endif  // THINWIRE_HAVE_GROUPS

}  // namespace HWY_NAMESPACE
}  // namespace thinwire
HWY_AFTER_NAMESPACE();

#endif  // THINWIRE_KERNELS_PACKING_INL_H_
