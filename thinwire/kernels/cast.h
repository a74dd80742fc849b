// cast.h: arrays of f16 and bf16, converted as in core/half.h: to nearest, ties to even; overflow
// gives infinity, and all NaNs map to one NaN. Denormals are kept, whatever the FPU's flush modes.
// A factor is applied in f32 during the conversion, so that scaling needs no extra pass. Arrays
// must not overlap and need no alignment.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "thinwire/core/device.h"
#include "thinwire/core/element.h"
#include "thinwire/core/verdict.h"

namespace thinwire {

// out = half(x * factor). 6 bytes of memory traffic per element.
void cast_to_f16(const float* x, std::uint16_t* out, std::size_t count, float factor);
void cast_to_bf16(const float* x, std::uint16_t* out, std::size_t count, float factor);

// out = float(x) * factor. Returns whether every result is finite; all are written in either case.
bool cast_from_f16(const std::uint16_t* x, float* out, std::size_t count, float factor);
bool cast_from_bf16(const std::uint16_t* x, float* out, std::size_t count, float factor);

// into += from, summed in f32 and rounded back: the reduce operator of collectives on halves.
void add_f16(std::uint16_t* into, const std::uint16_t* from, std::size_t count);
void add_bf16(std::uint16_t* into, const std::uint16_t* from, std::size_t count);

// The plain references. Same bits.
void cast_to_f16_reference(const float* x, std::uint16_t* out, std::size_t count, float factor);
void cast_to_bf16_reference(const float* x, std::uint16_t* out, std::size_t count, float factor);
bool cast_from_f16_reference(const std::uint16_t* x, float* out, std::size_t count, float factor);
bool cast_from_bf16_reference(const std::uint16_t* x, float* out, std::size_t count, float factor);
void add_f16_reference(std::uint16_t* into, const std::uint16_t* from, std::size_t count);
void add_bf16_reference(std::uint16_t* into, const std::uint16_t* from, std::size_t count);

// One element of type From as type To.
template <typename From, typename To>
THINWIRE_HD typename To::Stored cast_one(typename From::Stored x, float factor) {
  return To::narrow(From::widen(x) * factor);
}

// out = to(x * factor) for every pair of f32, f16 and bf16. Returns whether every result is finite.
// x and out may be the same array where the types are the same.
bool cast_any(DType from, const void* x, DType to, void* out, std::size_t count, float factor);

// The same on a GPU: enqueues it. Where a result is not finite it sets verdict->skipped, unless
// verdict is null. Same bits; a NaN in an f32 result is some NaN.
void cast_cuda(DType from, const void* x, DType to, void* out, std::size_t count, float factor,
               Verdict* verdict, Stream stream);

}  // namespace thinwire
