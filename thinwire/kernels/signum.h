// signum.h: the pass of Signum over a bucket: momentum, and its signs as bits.
//
//     m' = momentum * m + (1 - momentum) * g      every product and sum rounded
//     |g| > limit        (limit.h; also NaN) m is unchanged, and the pass reports it
//     otherwise          m = m'
//
// The pass writes one bit per element for m < 0, and one for m == 0 (of either sign), because a
// vote has three values. 12.25 bytes of memory traffic per element.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "thinwire/core/cuda.h"
#include "thinwire/kernels/limit.h"

namespace thinwire {

// Writes ceil(count / 8) bytes to `negative` and to `zero`, with zero padding. Returns whether all
// of g is within the limit.
bool signum_pass(float momentum, const float* g, float* m, std::size_t count,
                 std::uint8_t* negative, std::uint8_t* zero);

// The plain reference. Same bits.
bool signum_pass_reference(float momentum, const float* g, float* m, std::size_t count,
                           std::uint8_t* negative, std::uint8_t* zero);

// m of one element after g; unchanged where g is beyond the limit.
THINWIRE_HD inline float signum_next(float momentum, float g, float m) {
  const float rest = 1.0f - momentum;
  return within_limit(g) ? momentum * m + rest * g : m;
}

}  // namespace thinwire
