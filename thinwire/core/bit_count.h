// bit_count.h: bit lengths and zeros, for host and CUDA code. In device code nvcc 13.0 compiles
// std::bit_width and std::countr_zero of 64 bits to constants, without a word.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>

#include "thinwire/core/cuda.h"

namespace thinwire {

// The number of bits that x needs; 0 for 0.
THINWIRE_HD constexpr unsigned bit_width(std::uint64_t x) {
#ifdef __CUDA_ARCH__
  return 64 - static_cast<unsigned>(__clzll(static_cast<long long>(x)));
#else
  return static_cast<unsigned>(std::bit_width(x));
#endif
}

// The zeros below the lowest one; 64 for 0.
THINWIRE_HD constexpr unsigned countr_zero(std::uint64_t x) {
#ifdef __CUDA_ARCH__
  return x == 0 ? 64u : static_cast<unsigned>(__ffsll(static_cast<long long>(x))) - 1;
#else
  return static_cast<unsigned>(std::countr_zero(x));
#endif
}

}  // namespace thinwire
