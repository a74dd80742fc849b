// natural.cc: powers of two, one element at a time.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/natural.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "thinwire/kernels/levels.h"
#include "thinwire/kernels/limit.h"

namespace thinwire {
bool natural_encode_reference(const float* g, float* v, std::size_t count, DrawKey key,
                              std::uint32_t first, std::uint8_t* exponents, std::uint8_t* signs) {
  bool finite = true;
  std::fill_n(signs, (count + 7) / 8, std::uint8_t{0});
  for (std::size_t i = 0; i < count; ++i) {
    const float x = v == nullptr ? g[i] : taken_in(g[i], v[i]);
    const auto bits = std::bit_cast<std::uint32_t>(x);
    if (bits >> 31) signs[i / 8] = static_cast<std::uint8_t>(signs[i / 8] | 1u << (i % 8));
    exponents[i] = 0;
    if (!std::isfinite(x)) {
      finite = false;
      continue;
    }
    exponents[i] = natural_exponent(bits, draw_at(key, first + static_cast<std::uint32_t>(i)));
    if (v != nullptr) v[i] = x - natural_power(exponents[i], bits >> 31 != 0);
  }
  return finite;
}

bool natural_add_reference(const std::uint8_t* exponents, const std::uint8_t* signs,
                           std::size_t count, float share, float* target) {
  bool sound = level_padding_is_zero(signs, count, 1);
  for (std::size_t i = 0; i < count; ++i) {
    sound = sound && exponents[i] != 255;
    target[i] += natural_power(exponents[i], sign_at(signs, i)) * share;
  }
  return sound;
}

}  // namespace thinwire
