// levels.h: the bit streams of the quantisers: small numbers of `bits` (1 to 8) bits each, and
// signs of one bit each, from the lowest bit of the first byte up. These are plain loops, for
// references, partial groups and decoders where speed does not matter.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "thinwire/core/cuda.h"

namespace thinwire {

THINWIRE_HD constexpr std::size_t level_bytes(std::size_t count, unsigned bits) {
  return (count * bits + 7) / 8;
}

// Levels are below 2^bits. Writes exactly level_bytes(count, bits) bytes; unused bits are zero.
void pack_levels(const std::uint8_t* levels, std::size_t count, unsigned bits, std::uint8_t* out);
// Reads exactly that many.
void unpack_levels(const std::uint8_t* in, std::size_t count, unsigned bits, std::uint8_t* levels);

// Whether the unused bits at the end of a stream are zero. `in` is the first byte of the stream.
inline bool level_padding_is_zero(const std::uint8_t* in, std::size_t count, unsigned bits) {
  const std::size_t used = count * bits % 8;
  return used == 0 || in[count * bits / 8] >> used == 0;
}

// Sets the bit of each x that is negative (or -0).
void pack_signs(const float* x, std::size_t count, std::uint8_t* out);

inline bool sign_at(const std::uint8_t* signs, std::size_t i) {
  return (signs[i / 8] >> (i % 8) & 1u) != 0;
}

}  // namespace thinwire
