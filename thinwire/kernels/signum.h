// signum.h: the pass of Signum over a bucket: momentum, and its signs as bits.
//
//     m' = momentum * m + (1 - momentum) * g      every product and sum rounded singly
//     |g| > limit        (limit.h; NaN too) m stays as it was, and the pass reports it
//     otherwise          m = m'
//
// Then a bit per element that says m < 0, and another that says m == 0 (of either sign): a vote
// has three values. 12.25 bytes of memory traffic per element.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace thinwire {

// Writes ceil(count / 8) bytes to `negative` and to `zero`, padding zero. Returns whether all of
// g was within the limit.
bool signum_pass(float momentum, const float* g, float* m, std::size_t count,
                 std::uint8_t* negative, std::uint8_t* zero);

// The same, one element after the other. Same bits.
bool signum_pass_reference(float momentum, const float* g, float* m, std::size_t count,
                           std::uint8_t* negative, std::uint8_t* zero);

}  // namespace thinwire
