// divide.h: exact division of many 32-bit numbers by one, as a multiplication.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "thinwire/core/cuda.h"

namespace thinwire {

// quotient(n) = floor(n / divisor) for every n < 2^32 and 1 <= divisor < 2^32. With r = floor((2^64
// - 1) / divisor), r * (n + 1) / 2^64 falls short of (n + 1) / divisor by more than 0 and at most
// 2^-32: never below n / divisor rounded down, and never at the next integer.
class Divider {
 public:
  THINWIRE_HD explicit constexpr Divider(std::uint64_t divisor)
      : reciprocal_(~std::uint64_t{0} / divisor) {}

  THINWIRE_HD std::uint32_t quotient(std::uint32_t n) const {
#ifdef __CUDA_ARCH__
    return static_cast<std::uint32_t>(__umul64hi(reciprocal_, std::uint64_t{n} + 1));
#else
    __extension__ using Wide = unsigned __int128;
    return static_cast<std::uint32_t>((Wide{reciprocal_} * (std::uint64_t{n} + 1)) >> 64);
#endif
  }

 private:
  std::uint64_t reciprocal_;
};

}  // namespace thinwire
