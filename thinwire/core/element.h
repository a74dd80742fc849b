// element.h: the types that a gradient's elements may have: f32, f16, bf16. Memory and arithmetic
// are f32: an element is widened when it is read and narrowed when it is written. CPU and CUDA have
// the same bits, except that a widened NaN is some NaN.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>

#include "thinwire/core/cuda.h"
#include "thinwire/core/dtype.h"
#include "thinwire/core/error.h"
#include "thinwire/core/half.h"
#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

namespace thinwire {

template <DType type>
struct Element;

template <>
struct Element<DType::f32> {
  using Stored = float;
  THINWIRE_HD static float widen(float x) { return x; }
  THINWIRE_HD static float narrow(float x) { return x; }
};

// A GPU has instructions for halves. They differ from half.h in the pattern of NaN alone;
// tests/cuda/half_test.cu compares all floats.
template <>
struct Element<DType::f16> {
  using Stored = std::uint16_t;
  THINWIRE_HD static float widen(Stored x) {
#ifdef __CUDA_ARCH__
    return __half2float(__ushort_as_half(x));
#else
    return from_f16(x);
#endif
  }
  THINWIRE_HD static Stored narrow(float x) {
#ifdef __CUDA_ARCH__
    return x != x ? Stored{0x7e00} : __half_as_ushort(__float2half_rn(x));
#else
    return to_f16(x);
#endif
  }
};

template <>
struct Element<DType::bf16> {
  using Stored = std::uint16_t;
  THINWIRE_HD static float widen(Stored x) { return from_bf16(x); }
  THINWIRE_HD static Stored narrow(float x) {
#ifdef __CUDA_ARCH__
    return x != x ? Stored{0x7fc0} : __bfloat16_as_ushort(__float2bfloat16_rn(x));
#else
    return to_bf16(x);
#endif
  }
};

// Calls f with the Element of a gradient's type. Throws where no gradient has the type.
template <typename F>
decltype(auto) with_element(DType type, const char* who, F&& f) {
  switch (type) {
    case DType::f32:
      return f(Element<DType::f32>{});
    case DType::f16:
      return f(Element<DType::f16>{});
    case DType::bf16:
      return f(Element<DType::bf16>{});
    case DType::i8:
    case DType::i32:
      break;
  }
  fail(who, ": expected elements of type f32, f16 or bf16, got ", name_of(type));
}

THINWIRE_HD inline bool is_finite(float x) {
  return (std::bit_cast<std::uint32_t>(x) & 0x7f800000u) != 0x7f800000u;
}

}  // namespace thinwire
