// terngrad.cc: random signs, one element at a time.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/terngrad.h"

#include <algorithm>
#include <cmath>

#include "thinwire/kernels/norm.h"

namespace thinwire {
namespace {

constexpr unsigned digits = 5;
constexpr unsigned powers[] = {1, 3, 9, 27, 81};

template <typename Integer>
void scale_all(const Integer* sums, std::size_t count, float unit, float* out) {
  for (std::size_t i = 0; i < count; ++i) out[i] = static_cast<float>(sums[i]) * unit;
}

}  // namespace

LayerStatistics layer_statistics_reference(const float* x, std::size_t count) {
  LayerStatistics result{squared_norm_reference(x, count), 0, true};
  for (std::size_t i = 0; i < count; ++i) {
    result.finite = result.finite && std::isfinite(x[i]);
    result.largest = std::max(result.largest, std::abs(x[i]));
  }
  return result;
}

void terngrad_quantise_reference(const float* x, std::size_t count, float scale, float clip,
                                 DrawKey key, std::uint32_t first, std::int8_t* out) {
  const float inverse = terngrad_inverse(scale);
  for (std::size_t i = 0; i < count; ++i)
    out[i] = static_cast<std::int8_t>(
        terngrad_value(x[i], clip, inverse, draw_at(key, first + static_cast<std::uint32_t>(i))));
}

void terngrad_encode_reference(const float* x, std::size_t count, float scale, float clip,
                               DrawKey key, std::uint32_t first, std::uint8_t* out) {
  std::int8_t values[terngrad_group];
  for (std::size_t at = 0; at < count; at += terngrad_group) {
    terngrad_quantise_reference(x + at, terngrad_group, scale, clip, key,
                                first + static_cast<std::uint32_t>(at), values);
    terngrad_pack_reference(values, terngrad_group, out + at / digits);
  }
}

void terngrad_pack_reference(const std::int8_t* values, std::size_t count, std::uint8_t* out) {
  for (std::size_t at = 0; at < count; at += terngrad_group) {
    const std::size_t size = std::min(terngrad_group, count - at),
                      bytes = (size + digits - 1) / digits;
    for (std::size_t j = 0; j < bytes; ++j) {
      unsigned byte = 0;
      for (std::size_t k = 0; k < digits; ++k) {
        const std::size_t i = k * bytes + j;
        const int value = i < size ? values[at + i] : 0;
        byte += powers[k] * static_cast<unsigned>(value < 0 ? 2 : value);
      }
      *out++ = static_cast<std::uint8_t>(byte);
    }
  }
}

bool terngrad_add_reference(const std::uint8_t* in, std::size_t count, std::int16_t* sums) {
  bool sound = true;
  for (std::size_t at = 0; at < count; at += terngrad_group) {
    const std::size_t size = std::min(terngrad_group, count - at),
                      bytes = (size + digits - 1) / digits;
    for (std::size_t j = 0; j < bytes; ++j) {
      unsigned byte = *in++;
      sound = sound && byte < 243;
      for (std::size_t k = 0; k < digits; ++k, byte /= 3) {
        const std::size_t i = k * bytes + j;
        const int value = byte % 3 == 2 ? -1 : static_cast<int>(byte % 3);
        sound = sound && (i < size || value == 0);
        if (i < size) sums[at + i] = static_cast<std::int16_t>(sums[at + i] + value);
      }
    }
  }
  return sound;
}

// Plain loops, which compilers vectorize well.
void terngrad_scale(const std::int16_t* sums, std::size_t count, float unit, float* out) {
  scale_all(sums, count, unit, out);
}

void terngrad_scale(const std::int8_t* sums, std::size_t count, float unit, float* out) {
  scale_all(sums, count, unit, out);
}

}  // namespace thinwire
