// qsgd_nohwy.cc: random levels where Highway is not installed.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/qsgd.h"

namespace thinwire {

bool qsgd_encode(const QsgdRule& rule, const float* g, float* v, std::size_t count, DrawKey key,
                 std::uint32_t first, std::uint8_t* out) {
  return qsgd_encode_reference(rule, g, v, count, key, first, out);
}

bool qsgd_add(const QsgdRule& rule, const std::uint8_t* in, std::size_t count, float share,
              float* target) {
  return qsgd_add_reference(rule, in, count, share, target);
}

bool qsgd_quantise(const QsgdRule& rule, const float* g, float* v, std::size_t count, DrawKey key,
                   std::uint32_t first, float& norm, std::uint8_t* levels, std::uint8_t* signs) {
  return qsgd_quantise_reference(rule, g, v, count, key, first, norm, levels, signs);
}

void qsgd_apply(const QsgdRule& rule, float norm, const std::uint8_t* levels,
                const std::uint8_t* signs, std::size_t count, float share, float* target) {
  qsgd_apply_reference(rule, norm, levels, signs, count, share, target);
}

}  // namespace thinwire
