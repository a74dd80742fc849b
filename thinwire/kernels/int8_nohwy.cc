// int8_nohwy.cc: blocks of bytes where Highway is not installed.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/int8.h"

namespace thinwire {

bool int8_encode(const Int8Rule& rule, const float* g, float* v, std::size_t count, DrawKey key,
                 std::uint32_t first, std::uint8_t* out) {
  return int8_encode_reference(rule, g, v, count, key, first, out);
}

bool int8_add(const Int8Rule& rule, const std::uint8_t* in, std::size_t count, float share,
              float* target) {
  return int8_add_reference(rule, in, count, share, target);
}

}  // namespace thinwire
