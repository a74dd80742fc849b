// csc.h: adds a gradient to the memory and computes the L1 norm of the result in one pass, for
// schemes that choose whole chunks by their norm. Per element, with every product and sum rounded:
//
//     none       v' = g                        u and v are not touched
//     residual   v' = v + g                    u is not touched
//     momentum   u' = m*u + g,   v' = v + u'
//     nesterov   u' = m*(u + g), v' = v + (u' + g)
//
//     |g| > limit     (limit.h; also NaN) u and v are unchanged
//     otherwise       u = u', v = v'
//
// The norm is summed in double, in one order that vectors of every width and a GPU can follow:
// blocks of 1024 elements add element i to sum i % 32, then the 32 sums as a tree (norm.h); the
// sums of the blocks are added in the same way. Finite floats cannot overflow it. 20 bytes of
// memory traffic per element with momentum: read g, u, v; write u, v.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "thinwire/kernels/limit.h"

namespace thinwire {

inline constexpr std::size_t csc_block = 1024, csc_sums = 32;  // a warp of a GPU adds a block

// Returns the sum of |v'| over `count` elements, or infinity when some g is beyond the limit.
// Pointers need no alignment. u and v may be null where `accumulate` does not use them.
double csc_pass(const MemoryRule& rule, const float* g, float* u, float* v, std::size_t count);

// The plain reference. Same bits.
double csc_pass_reference(const MemoryRule& rule, const float* g, float* u, float* v,
                          std::size_t count);

// The part that both share: adds the elements to the csc_sums sums, starting at sum 0.
void csc_add(const MemoryRule& rule, const float* g, float* u, float* v, std::size_t count,
             double* sums);

}  // namespace thinwire
