// csc.h: takes a gradient into memory and measures the result, in one sweep: the pass of schemes
// that choose whole chunks by their L1 norm. Per element, all products and sums rounded singly:
//
//     none       v' = g                        u and v are not touched
//     residual   v' = v + g                    u is not touched
//     momentum   u' = m*u + g,   v' = v + u'
//     nesterov   u' = m*(u + g), v' = v + (u' + g)
//
//     |g| > limit     (limit.h; NaN too) u, v stay as they were
//     otherwise       u = u', v = v'
//
// The norm is summed in double, element i into sum i % 16 and the sixteen sums as a tree (norm.h):
// an order that no vector width changes, and no number of finite floats overflows. 20 bytes of
// memory traffic per element with momentum: read g, u, v, write u, v.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "thinwire/kernels/limit.h"

namespace thinwire {

// The sum of |v'| over `count` elements; infinite when some g is beyond the limit. Pointers need
// no alignment; u and v may be null where `accumulate` does not touch
// them.
double csc_pass(const MemoryRule& rule, const float* g, float* u, float* v, std::size_t count);

// The same, one element after the other. Same bits.
double csc_pass_reference(const MemoryRule& rule, const float* g, float* u, float* v,
                          std::size_t count);

// The step that both share: elements into the sixteen sums, starting at sum 0.
void csc_add(const MemoryRule& rule, const float* g, float* u, float* v, std::size_t count,
             double* sums);

}  // namespace thinwire
