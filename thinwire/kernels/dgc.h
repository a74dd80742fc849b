// dgc.h: the pass of Deep Gradient Compression over a bucket. One pass scales the gradient (local
// clipping), accumulates it, compares the result with the threshold, and takes the survivors out.
// Per element, with d = scale*g and every product and sum rounded:
//
//     none       v' = d                        top-k without feedback; u and v are not touched
//     residual   v' = v + d                    gradient dropping; u is not touched
//     momentum   u' = m*u + d,   v' = v + u'
//     nesterov   u' = m*(u + d), v' = v + (u' + d)
//     pool       pooled() in limit.h
//
//     |d| > limit        (limit.h; also NaN) u and v are unchanged, and the pass reports it
//     |v'| >= threshold  survivor: (index, v', u') is appended, u = v = 0   (factor masking)
//     otherwise          u = u', v = v'
//
// 20 bytes of memory traffic per element with momentum: read g, u, v; write u, v.
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

// Output arrays for the survivors, each with room for all `count` elements of the call. Elements
// after the last survivor are undefined afterwards. `velocity` receives u' where accumulate has
// momentum; otherwise it may be null.
struct Picked {
  std::uint32_t* index = nullptr;
  float* value = nullptr;
  float* velocity = nullptr;
};

struct DgcTally {
  std::size_t picked = 0;
  bool finite = true;  // every d was within the limit
};

// Elements that a caller should pass per call: enough to hide the cost of the dispatch, few enough
// for the lists to stay in the L1 or L2 cache.
inline constexpr std::size_t dgc_block = 4096;

// The pass over `count` elements. Survivors' indices count from `first`. It uses the widest vectors
// of this machine. Pointers need no alignment. u and v may be null where `accumulate` does not use
// them.
DgcTally dgc_pass(const DgcRule& rule, const float* g, float* u, float* v, std::size_t count,
                  std::uint32_t first, const Picked& out);

// The plain reference, also the fallback without Highway. Same bits.
DgcTally dgc_pass_reference(const DgcRule& rule, const float* g, float* u, float* v,
                            std::size_t count, std::uint32_t first, const Picked& out);

}  // namespace thinwire
