// dgc.h: the pass over a bucket that is Deep Gradient Compression. In one sweep: scale the gradient
// (local clipping), accumulate, compare with the threshold, take out what passes. Per element, all
// products and sums rounded singly, with d = scale*g:
//
//     none       v' = d                        top-k without feedback; u and v are not touched
//     residual   v' = v + d                    gradient dropping; u is not touched
//     momentum   u' = m*u + d,   v' = v + u'
//     nesterov   u' = m*(u + d), v' = v + (u' + d)
//
//     |d| > limit        (limit.h; NaN too) u, v stay as they were, and the pass reports it
//     |v'| >= threshold  taken: (index, v', u') are appended, u = v = 0   (factor masking)
//     otherwise          u = u', v = v'
//
// 20 bytes of memory traffic per element with momentum: read g, u, v, write u, v.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "thinwire/kernels/limit.h"

namespace thinwire {

struct DgcRule {
  Accumulate accumulate = Accumulate::momentum;
  float momentum = 0.9f;
  float scale = 1.0f;      // of the gradient: 1, or less when it is clipped
  float threshold = 0.0f;  // > 0, so that zeros never pass
};

// Where survivors go: three arrays with room for all `count` elements of the call; what lies in
// them behind the picked ones afterwards is undefined. `velocity` (u') is written, and must not be
// null, only where accumulate is momentum or nesterov.
struct Picked {
  std::uint32_t* index = nullptr;
  float* value = nullptr;
  float* velocity = nullptr;
};

struct DgcTally {
  std::size_t picked = 0;
  bool finite = true;  // every d was within the limit
};

// Elements that a caller should hand over at a time: large enough to hide the dispatch, small
// enough for lists on L1/L2.
inline constexpr std::size_t dgc_block = 4096;

// The pass over `count` elements; picked indices count from `first`. Runs the widest vectors of
// this machine. Pointers need no alignment. u and v may be null where `accumulate` does not touch
// them.
DgcTally dgc_pass(const DgcRule& rule, const float* g, float* u, float* v, std::size_t count,
                  std::uint32_t first, const Picked& out);

// The same, one element after the other: the oracle, and the fallback where Highway is missing.
// Same bits.
DgcTally dgc_pass_reference(const DgcRule& rule, const float* g, float* u, float* v,
                            std::size_t count, std::uint32_t first, const Picked& out);

}  // namespace thinwire
