// cast.cc: arrays of halves, one element at a time.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/cast.h"

#include <cmath>

#include "thinwire/core/half.h"

namespace thinwire {
namespace {

template <auto narrow>
void cast_to(const float* x, std::uint16_t* out, std::size_t count, float factor) {
  for (std::size_t i = 0; i < count; ++i) out[i] = narrow(x[i] * factor);
}

template <auto widen>
bool cast_from(const std::uint16_t* x, float* out, std::size_t count, float factor) {
  bool finite = true;
  for (std::size_t i = 0; i < count; ++i) {
    out[i] = widen(x[i]) * factor;
    finite = std::isfinite(out[i]) && finite;
  }
  return finite;
}

template <auto widen, auto narrow>
void add(std::uint16_t* into, const std::uint16_t* from, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) into[i] = narrow(widen(into[i]) + widen(from[i]));
}

}  // namespace

void cast_to_f16_reference(const float* x, std::uint16_t* out, std::size_t count, float factor) {
  cast_to<to_f16>(x, out, count, factor);
}

void cast_to_bf16_reference(const float* x, std::uint16_t* out, std::size_t count, float factor) {
  cast_to<to_bf16>(x, out, count, factor);
}

bool cast_from_f16_reference(const std::uint16_t* x, float* out, std::size_t count, float factor) {
  return cast_from<from_f16>(x, out, count, factor);
}

bool cast_from_bf16_reference(const std::uint16_t* x, float* out, std::size_t count, float factor) {
  return cast_from<from_bf16>(x, out, count, factor);
}

void add_f16_reference(std::uint16_t* into, const std::uint16_t* from, std::size_t count) {
  add<from_f16, to_f16>(into, from, count);
}

void add_bf16_reference(std::uint16_t* into, const std::uint16_t* from, std::size_t count) {
  add<from_bf16, to_bf16>(into, from, count);
}

}  // namespace thinwire
