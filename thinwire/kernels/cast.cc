// cast.cc: arrays of halves, one element at a time.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/cast.h"

namespace thinwire {
namespace {

using F32 = Element<DType::f32>;
using F16 = Element<DType::f16>;
using Bf16 = Element<DType::bf16>;

template <typename From, typename To>
bool cast_all(const typename From::Stored* x, typename To::Stored* out, std::size_t count,
              float factor) {
  bool finite = true;
  for (std::size_t i = 0; i < count; ++i) {
    out[i] = cast_one<From, To>(x[i], factor);
    finite = is_finite(To::widen(out[i])) && finite;
  }
  return finite;
}

template <typename T>
void add(std::uint16_t* into, const std::uint16_t* from, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i)
    into[i] = T::narrow(T::widen(into[i]) + T::widen(from[i]));
}

}  // namespace

void cast_to_f16_reference(const float* x, std::uint16_t* out, std::size_t count, float factor) {
  cast_all<F32, F16>(x, out, count, factor);
}

void cast_to_bf16_reference(const float* x, std::uint16_t* out, std::size_t count, float factor) {
  cast_all<F32, Bf16>(x, out, count, factor);
}

bool cast_from_f16_reference(const std::uint16_t* x, float* out, std::size_t count, float factor) {
  return cast_all<F16, F32>(x, out, count, factor);
}

bool cast_from_bf16_reference(const std::uint16_t* x, float* out, std::size_t count, float factor) {
  return cast_all<Bf16, F32>(x, out, count, factor);
}

void add_f16_reference(std::uint16_t* into, const std::uint16_t* from, std::size_t count) {
  add<F16>(into, from, count);
}

void add_bf16_reference(std::uint16_t* into, const std::uint16_t* from, std::size_t count) {
  add<Bf16>(into, from, count);
}

bool cast_any(DType from, const void* x, DType to, void* out, std::size_t count, float factor) {
  return with_element(from, "cast", [&](auto source) {
    return with_element(to, "cast", [&](auto target) {
      using From = decltype(source);
      using To = decltype(target);
      return cast_all<From, To>(static_cast<const typename From::Stored*>(x),
                                static_cast<typename To::Stored*>(out), count, factor);
    });
  });
}

}  // namespace thinwire
