// sign.h: the passes of schemes that send signs. With x = g + r (x = g where r is null), a bit is 1
// where x < 0, and 0 where x >= 0, zeros of both signs included; bits fill bytes from the lowest up.
//
//     scan     the bits, and the sums of each side: what means are made of
//     settle   r = x - (x < 0 ? low : high): what receivers will not see stays
//     add      target += bit ? low : high
//
// A scan adds in one order, whatever the vectors: element i belongs to sum i % 16 of its side; eight
// at a time (a block of 128 elements) are added in float, and these in double. Where that overflows
// although all are finite, everything is added in double.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace thinwire {

struct SignSums {
  double high = 0, low = 0;  // of the x >= 0 and of the x < 0; not finite when an x is
                             // not, or where there is an r and a g beyond the limit (limit.h)
  std::size_t lows = 0;      // how many x < 0
};

// Reads g and r, writes ceil(count / 8) bytes, padding zero. 8.125 bytes of traffic per element.
SignSums sign_scan(const float* g, const float* r, std::size_t count, std::uint8_t* bits);
SignSums sign_scan_reference(const float* g, const float* r, std::size_t count, std::uint8_t* bits);

// Reads g and r, writes r: 12 bytes per element, of which 8 come from a cache when it follows the
// scan of a group that fits.
void sign_settle(const float* g, float* r, std::size_t count, float high, float low);
void sign_settle_reference(const float* g, float* r, std::size_t count, float high, float low);

// Reads ceil(count / 8) bytes of bits, and no more.
void sign_add(const std::uint8_t* bits, std::size_t count, float high, float low, float* target);
void sign_add_reference(const std::uint8_t* bits, std::size_t count, float high, float low,
                        float* target);

}  // namespace thinwire
