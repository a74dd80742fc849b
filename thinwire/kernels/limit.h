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
//     none            nothing is kept
//     residual        v' = v + d
//     momentum        u' = m*u + d,   v' = v + u'
//     nesterov        u' = m*(u + d), v' = v + (u' + d)
//     pool            u' and v' are two parts of one pool: pooled()
enum class Accumulate : std::uint8_t { none, residual, momentum, nesterov, pool };

THINWIRE_HD constexpr bool has_residual(Accumulate kind) { return kind != Accumulate::none; }
THINWIRE_HD constexpr bool has_momentum(Accumulate kind) {
  return kind != Accumulate::none && kind != Accumulate::residual;
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

// The factors of pooled(), each rounded once.
struct PoolFactors {
  float momentum, rest;  // m, 1 - m
  float over_momentum, over_rest;
  float half;  // a share below this falls slower, by `slow` per step
  float slow = 0.995f;
};

THINWIRE_HD constexpr PoolFactors pool_factors(float m) {
  return {m, 1 - m, 1 / m, 1 / (1 - m), m < 0.5f ? m : 0.5f};
}

// Accumulate::pool. What is still to come of all gradients so far is one pool, R = (1-m) v + m u:
// v goes out when the element is sent, and u is the momentum that stays. SGD with momentum hands
// out 1 - m of its pool in each step, so after T steps without a send 1 - m^T of it is due,
// however recent its gradients are:
//
//     s = m u / R, which is 1 after a send
//     s' = m s, but from 1/2 on it falls by 0.5 % per step only
//     R' = R + d,   v' = (1 - s') R' / (1-m),   u' = s' R' / m
//
// An element that is sent in every step learns as with SGD. Why this is stable where
// Accumulate::momentum is not, why s falls slowly, and why there is no pool in Nesterov's form:
// docs/notebook/schemes.md, bench/dgc_theory.py.
THINWIRE_HD inline Kept pooled(const PoolFactors& by, float d, Kept old) {
  const float tail = by.momentum * old.u;
  const float before = by.rest * old.v + tail;
  float share = tail / before;
  if (!(share <= 1)) share = 1;  // also where the pool is empty
  const float slow = by.slow * share < by.half ? by.slow * share : by.half;
  share = by.momentum * share;
  if (share < slow) share = slow;
  // Never -0. Not beside the other limit: ptxas 13.0 makes a saturation of the two, which turns the
  // NaN of an empty pool into 0.
  if (!(share > 0)) share = 0;
  const float pool = before + d;
  return {(share * by.over_momentum) * pool, ((1 - share) * by.over_rest) * pool};
}

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
    case Accumulate::pool:
      return pooled(pool_factors(rule.momentum), d, old);
  }
  return old;
}

// v += g where g is within the limit: a plain loop, for groups that were refused.
void add_within_limit(const float* g, float* v, std::size_t count);

// Undoes an accumulation up to rounding: goes from u' and v' back to v, by subtracting what was
// added for d = scale * g where d is within the limit. `sent` (or null) is what was sent and
// therefore missing in v'. The momentum restarts: u = 0. A pool loses d from both of its parts. A
// result below the rounding error of these sums becomes 0, so that at most twice the earlier
// residual is left, however large g and sent are. u and v may be null where the rule does not use
// them.
void take_out(const MemoryRule& rule, float scale, const float* g, const float* sent, float* u,
              float* v, std::size_t count);

// u and v of one element after take_out(): from d, what was sent, u' and v'. Not for
// Accumulate::none.
THINWIRE_HD inline Kept taken_out(const MemoryRule& rule, float d, float sent, Kept now) {
  const bool pools = rule.accumulate == Accumulate::pool;
  if (!within_limit(d)) return {pools ? now.u : 0.0f, now.v};
  const double back = sent;
  if (pools) {
    const double m = rule.momentum, v = now.v + back;
    const double due = (1 - m) * v, later = m * now.u, before = due + later - d;
    // u' and v' are rounded a few times each.
    constexpr double rounding = 0x1p-20;
    if (std::fabs(before) <= rounding * (std::fabs(static_cast<double>(d)) + std::fabs(back)))
      return {};
    // Both parts change alike, unless there is nothing left of them.
    if (std::fabs(due + later) <= rounding * (std::fabs(due) + std::fabs(later)))
      return {0, static_cast<float>(before / (1 - m))};
    const double share = before / (due + later);
    return {static_cast<float>(share * now.u), static_cast<float>(share * v)};
  }
  const double added = rule.accumulate == Accumulate::residual   ? d
                       : rule.accumulate == Accumulate::momentum ? now.u
                                                                 : now.u + d;
  const double rest = now.v + back - added;
  const double rounding = 0x1p-23 * (std::fabs(added) + std::fabs(back));
  return {0, std::fabs(rest) <= 2 * rounding ? 0.0f : static_cast<float>(rest)};
}

// Enqueues x = value for all elements; it does its work only where the step is void.
void fill_void_cuda(DType type, void* x, std::size_t count, float value, const Verdict* verdict,
                    Stream stream);

}  // namespace thinwire
