// levels.cc: streams of bits, one number at a time.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/levels.h"

#include <algorithm>
#include <cmath>

namespace thinwire {

void pack_levels(const std::uint8_t* levels, std::size_t count, unsigned bits, std::uint8_t* out) {
  std::fill_n(out, level_bytes(count, bits), std::uint8_t{0});
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t at = i * bits;
    const unsigned both = static_cast<unsigned>(levels[i]) << (at % 8);
    out[at / 8] = static_cast<std::uint8_t>(out[at / 8] | both);
    if (both > 255) out[at / 8 + 1] = static_cast<std::uint8_t>(both >> 8);
  }
}

void unpack_levels(const std::uint8_t* in, std::size_t count, unsigned bits, std::uint8_t* levels) {
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t at = i * bits;
    unsigned both = in[at / 8];
    if (at % 8 + bits > 8) both |= static_cast<unsigned>(in[at / 8 + 1]) << 8;
    levels[i] = static_cast<std::uint8_t>((both >> (at % 8)) & ((1u << bits) - 1));
  }
}

void pack_signs(const float* x, std::size_t count, std::uint8_t* out) {
  std::fill_n(out, (count + 7) / 8, std::uint8_t{0});
  for (std::size_t i = 0; i < count; ++i) {
    if (std::signbit(x[i])) out[i / 8] = static_cast<std::uint8_t>(out[i / 8] | 1u << (i % 8));
  }
}

}  // namespace thinwire
