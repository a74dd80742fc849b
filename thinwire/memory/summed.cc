// summed.cc: the casts before and after a sum.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/memory/summed.h"

#include <algorithm>
#include <cstring>

#include "thinwire/kernels/average.h"
#include "thinwire/kernels/cast.h"

namespace thinwire {
namespace {

constexpr std::size_t block = 1024;

}  // namespace

void SummedValues::write(std::span<float> x, Bytes out) const {
  if (dtype == DType::f32) {
    if (!x.empty()) std::memmove(out.data(), x.data(), x.size_bytes());
    return;
  }
  if (dtype == DType::f16) {
    for (float& value : x) value = rule().limited(value);
  }
  const auto cast = dtype == DType::f16 ? cast_to_f16 : cast_to_bf16;
  cast(x.data(), reinterpret_cast<std::uint16_t*>(out.data()), x.size(),
       1.0f / static_cast<float>(world));
}

bool SummedValues::read(ConstBytes sum, std::span<float> average) const {
  if (dtype == DType::f32) {
    if (!average.empty()) std::memcpy(average.data(), sum.data(), average.size_bytes());
    return scale_finite(average.data(), average.size(), 1.0f / static_cast<float>(world));
  }
  const auto cast = dtype == DType::f16 ? cast_from_f16 : cast_from_bf16;
  return cast(reinterpret_cast<const std::uint16_t*>(sum.data()), average.data(), average.size(),
              1.0f);
}

void SummedValues::keep_rest(std::span<float> x) const {
  if (dtype == DType::f32) return std::fill(x.begin(), x.end(), 0.0f);
  std::uint16_t halves[block];
  float sent[block];
  for (std::size_t at = 0; at < x.size(); at += block) {
    const std::span<float> part = x.subspan(at, std::min(block, x.size() - at));
    std::copy(part.begin(), part.end(), sent);
    write(std::span(sent).first(part.size()),
          std::as_writable_bytes(std::span(halves).first(part.size())));
    const auto widen = dtype == DType::f16 ? cast_from_f16 : cast_from_bf16;
    widen(halves, sent, part.size(), static_cast<float>(world));
    for (std::size_t i = 0; i < part.size(); ++i) part[i] -= sent[i];
  }
}

}  // namespace thinwire
