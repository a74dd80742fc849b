// ternary_nohwy.cc: random signs where Highway is not installed.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/ternary.h"

namespace thinwire {

LayerStatistics layer_statistics(const float* x, std::size_t count) {
  return layer_statistics_reference(x, count);
}

void ternary_quantise(const float* x, std::size_t count, float scale, float clip, DrawKey key,
                      std::uint32_t first, std::int8_t* out) {
  ternary_quantise_reference(x, count, scale, clip, key, first, out);
}

void ternary_pack(const std::int8_t* values, std::size_t count, std::uint8_t* out) {
  ternary_pack_reference(values, count, out);
}

void ternary_encode(const float* x, std::size_t count, float scale, float clip, DrawKey key,
                    std::uint32_t first, std::uint8_t* out) {
  ternary_encode_reference(x, count, scale, clip, key, first, out);
}

bool ternary_add(const std::uint8_t* in, std::size_t count, std::int16_t* sums) {
  return ternary_add_reference(in, count, sums);
}

}  // namespace thinwire
