// natural_nohwy.cc: powers of two where Highway is not installed.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/natural.h"

namespace thinwire {

bool natural_encode(const float* g, float* v, std::size_t count, DrawKey key, std::uint32_t first,
                    std::uint8_t* exponents, std::uint8_t* signs) {
  return natural_encode_reference(g, v, count, key, first, exponents, signs);
}

bool natural_add(const std::uint8_t* exponents, const std::uint8_t* signs, std::size_t count,
                 float share, float* target) {
  return natural_add_reference(exponents, signs, count, share, target);
}

}  // namespace thinwire
