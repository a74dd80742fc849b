// sign.h: the passes of schemes that send signs. With x = g + r (x = g where r is null), a bit is 1
// where x < 0, and 0 where x >= 0 (including both zeros). Bits fill bytes from the lowest bit up.
//
//     scan     writes the bits, and sums each side for its mean
//     settle   r = x - (x < 0 ? low : high): the error of this step
//     add      target += bit ? low : high
//
// A scan adds in the same order on every vector width: element i goes to sum i % 16 of its side.
// Eight elements per sum (a block of 128 elements) are added in float, and the blocks in double.
// Where float overflows although all elements are finite, everything is added in double.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace thinwire {

struct SignSums {
  double high = 0, low = 0;  // sums of the x >= 0 and of the x < 0; not finite when an x is not
                             // finite, or when there is an r and a g is beyond the limit (limit.h)
  std::size_t lows = 0;      // number of x < 0
};

// Reads g and r, and writes ceil(count / 8) bytes with zero padding. 8.125 bytes of memory traffic
// per element.
SignSums sign_scan(const float* g, const float* r, std::size_t count, std::uint8_t* bits);
SignSums sign_scan_reference(const float* g, const float* r, std::size_t count, std::uint8_t* bits);

// Reads g and r, and writes r: 12 bytes per element. 8 of them come from a cache when the call
// follows the scan of a group that fits into it.
void sign_settle(const float* g, float* r, std::size_t count, float high, float low);
void sign_settle_reference(const float* g, float* r, std::size_t count, float high, float low);

// Reads ceil(count / 8) bytes of bits, and no more.
void sign_add(const std::uint8_t* bits, std::size_t count, float high, float low, float* target);
void sign_add_reference(const std::uint8_t* bits, std::size_t count, float high, float low,
                        float* target);

}  // namespace thinwire
