// cast_nohwy.cc: arrays of halves where Highway is not installed.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/cast.h"

namespace thinwire {

void cast_to_f16(const float* x, std::uint16_t* out, std::size_t count, float factor) {
  cast_to_f16_reference(x, out, count, factor);
}

void cast_to_bf16(const float* x, std::uint16_t* out, std::size_t count, float factor) {
  cast_to_bf16_reference(x, out, count, factor);
}

bool cast_from_f16(const std::uint16_t* x, float* out, std::size_t count, float factor) {
  return cast_from_f16_reference(x, out, count, factor);
}

bool cast_from_bf16(const std::uint16_t* x, float* out, std::size_t count, float factor) {
  return cast_from_bf16_reference(x, out, count, factor);
}

void add_f16(std::uint16_t* into, const std::uint16_t* from, std::size_t count) {
  add_f16_reference(into, from, count);
}

void add_bf16(std::uint16_t* into, const std::uint16_t* from, std::size_t count) {
  add_bf16_reference(into, from, count);
}

}  // namespace thinwire
