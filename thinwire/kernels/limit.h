// limit.h: which elements of a gradient memory takes in: those of magnitude at most gradient_limit.
// Anything larger, NaN and infinity are refused: the element's memory stays as it was, and the step
// is skipped. With this limit no sum of a momentum, of a residual or over the workers overflows, so
// the rank that refused an element is always the one whose gradient was bad.
//
// What a refused step had taken in is found again from the gradient alone: take_out() is the way
// back for every memory, whatever its scheme.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace thinwire {

// About 1.2e27: far above any gradient that trains, and so far below the largest float that it takes
// 2^37 such elements to sum up to that.
inline constexpr float gradient_limit = 0x1p90f;

inline bool within_limit(float x) { return std::fabs(x) <= gradient_limit; }

// g + v as a quantiser sees it: infinite where g is beyond the limit, so that whoever measures a group
// refuses it.
inline float taken_in(float g, float v) {
  return within_limit(g) ? g + v : std::numeric_limits<float>::infinity();
}

// Whether all of x are within the limit. 4 bytes of memory traffic per element.
bool all_within_limit(const float* x, std::size_t count);
bool all_within_limit_reference(const float* x, std::size_t count);

// What a memory makes of d, the scaled gradient:
//
//     none       nothing is kept
//     residual   v' = v + d
//     momentum   u' = m*u + d,   v' = v + u'
//     nesterov   u' = m*(u + d), v' = v + (u' + d)
enum class Accumulate : std::uint8_t { none, residual, momentum, nesterov };

constexpr bool has_residual(Accumulate kind) { return kind != Accumulate::none; }
constexpr bool has_momentum(Accumulate kind) {
  return kind == Accumulate::momentum || kind == Accumulate::nesterov;
}

// The memory of a scheme: its kind, and the momentum factor m.
struct MemoryRule {
  Accumulate accumulate = Accumulate::momentum;
  float momentum = 0.9f;
};

// v += g where g is within the limit: the slow way, for groups that are not coded.
void add_within_limit(const float* g, float* v, std::size_t count);

// From u' and v' back to v, to rounding: what was added for d = scale * g is subtracted where d is
// within the limit. `sent` (or null) is what v' lacks because it was sent. Momentum starts anew:
// u = 0. What is less than the rounding of these sums counts as nothing, so that however large g
// and sent are, no more than twice what was there is left. u and v may be null where `accumulate`
// has none.
void take_out(Accumulate accumulate, float scale, const float* g, const float* sent, float* u,
              float* v, std::size_t count);

}  // namespace thinwire
