// elias.h: the coder of signed levels from the QSGD paper, for levels that are mostly zero or
// small. It writes the distance to the next non-zero level, its sign and its level in universal
// codes. The paper uses Elias's omega code. Levels are below 64, where the gamma code is never
// longer, so we use gamma: floor(log2 n) zeros, a one, and the bits of n below its leading one.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "thinwire/core/status.h"
#include "thinwire/core/view.h"

namespace thinwire {

inline constexpr std::size_t elias_most = 8192;  // elements that one stream may have

// An upper bound of the bytes for `count` levels of `bits` bits.
constexpr std::size_t elias_bound(std::size_t count, unsigned bits) {
  return (count * (2 * bits + 1) + 7) / 8;
}

// Writes `count` levels and their signs (a bit each, lowest first) into `out`, elias_bound() bytes
// long; returns the bytes used. Signs of zeros are lost.
std::size_t elias_encode(const std::uint8_t* levels, const std::uint8_t* signs, std::size_t count,
                         Bytes out);

// Reads them back; signs of zeros are clear. Levels above `most` are refused. `used` is the length
// of the stream; bytes after it are not read.
Status elias_decode(ConstBytes bytes, std::size_t count, unsigned most, std::uint8_t* levels,
                    std::uint8_t* signs, std::size_t& used);

}  // namespace thinwire
