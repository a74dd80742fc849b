// limit.h: the limit of a gradient's elements, and the kinds of memory. A memory accepts elements
// of magnitude at most gradient_limit. It refuses larger ones, NaN and infinity: the memory of such
// an element is unchanged, and the step is skipped. Within this limit no sum of a momentum, of a
// residual or over the workers overflows, so the rank that refuses an element is always the one
// with the bad gradient.
//
// A refused step is taken back from the gradient alone: take_out() does this for every memory.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "thinwire/core/cuda.h"
#include "thinwire/core/device.h"
#include "thinwire/core/dtype.h"
#include "thinwire/core/verdict.h"

namespace thinwire {

// About 1.2e27: far above any useful gradient, and so far below the largest float that only 2^37
// such elements add up to it.
inline constexpr float gradient_limit = 0x1p90f;

THINWIRE_HD inline bool within_limit(float x) { return std::fabs(x) <= gradient_limit; }

// g + v, the input of a quantiser. It is infinite where g is beyond the limit, so that the scale of
// its group becomes infinite and the group is refused.
THINWIRE_HD inline float taken_in(float g, float v) {
  return within_limit(g) ? g + v : std::numeric_limits<float>::infinity();
}

// Whether all elements of x are within the limit. 4 bytes of memory traffic per element.
bool all_within_limit(const float* x, std::size_t count);
bool all_within_limit_reference(const float* x, std::size_t count);

// The kinds of memory, and how each accumulates d, the scaled gradient:
//
//     none       nothing is kept
//     residual   v' = v + d
//     momentum   u' = m*u + d,   v' = v + u'
//     nesterov   u' = m*(u + d), v' = v + (u' + d)
enum class Accumulate : std::uint8_t { none, residual, momentum, nesterov };

THINWIRE_HD constexpr bool has_residual(Accumulate kind) { return kind != Accumulate::none; }
THINWIRE_HD constexpr bool has_momentum(Accumulate kind) {
  return kind == Accumulate::momentum || kind == Accumulate::nesterov;
}

// The memory of a scheme: its kind, and the momentum factor m.
struct MemoryRule {
  Accumulate accumulate = Accumulate::momentum;
  float momentum = 0.9f;
};

// u and v of one element.
struct Kept {
  float u = 0, v = 0;
};

// u' and v' after d, which is within the limit. With `none` v' is d.
THINWIRE_HD inline Kept accumulated(const MemoryRule& rule, float d, Kept old) {
  switch (rule.accumulate) {
    case Accumulate::none:
      return {old.u, d};
    case Accumulate::residual:
      return {old.u, old.v + d};
    case Accumulate::momentum: {
      const float u = rule.momentum * old.u + d;
      return {u, old.v + u};
    }
    case Accumulate::nesterov: {
      const float u = rule.momentum * (old.u + d);
      return {u, old.v + (u + d)};
    }
  }
  return old;
}

// v += g where g is within the limit: a plain loop, for groups that were refused.
void add_within_limit(const float* g, float* v, std::size_t count);

// Undoes an accumulation up to rounding: goes from u' and v' back to v, by subtracting what was
// added for d = scale * g where d is within the limit. `sent` (or null) is what was sent and
// therefore missing in v'. The momentum restarts: u = 0. A result below the rounding error of these
// sums becomes 0, so that at most twice the earlier residual is left, however large g and sent are.
// u and v may be null where `accumulate` does not use them.
void take_out(Accumulate accumulate, float scale, const float* g, const float* sent, float* u,
              float* v, std::size_t count);

// v of one element after take_out(): from d, what was sent, u' and v'. Not for Accumulate::none.
THINWIRE_HD inline float taken_out(Accumulate accumulate, float d, float sent, float u, float v) {
  if (!within_limit(d)) return v;
  const double added = accumulate == Accumulate::residual   ? d
                       : accumulate == Accumulate::momentum ? u
                                                            : u + d;
  const double back = sent;
  const double rest = v + back - added;
  const double rounding = 0x1p-23 * (std::fabs(added) + std::fabs(back));
  return std::fabs(rest) <= 2 * rounding ? 0.0f : static_cast<float>(rest);
}

// Enqueues x = value for all elements; it does its work only where the step is void.
void fill_void_cuda(DType type, void* x, std::size_t count, float value, const Verdict* verdict,
                    Stream stream);

}  // namespace thinwire
