// threshold.h: the pass of threshold quantisation. An element sends at most one quantum per step.
// With x = g + r (x = g where r is null):
//
//     x >= tau           plus bit,  r = x - tau
//     x <= -tau          minus bit, r = x + tau
//     otherwise          r = x
//     |g| > limit        (limit.h; also NaN) no bit, r is unchanged, and the pass reports it
//
// 12.25 bytes of memory traffic per element: read g, r; write r and two bits.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "thinwire/core/cuda.h"

namespace thinwire {

// What an element sends, -1, 0 or 1 quanta, and what is left of it.
struct Quantum {
  float rest = 0;
  int sends = 0;
};
THINWIRE_HD inline Quantum quantum_of(float tau, float x) {
  if (x >= tau) return {x - tau, 1};
  if (x <= -tau) return {x + tau, -1};
  return {x, 0};
}

struct ThresholdTally {
  std::size_t sent = 0;
  float largest = 0;  // largest |r| afterwards, over the elements within the limit
  bool finite = true;
};

// tau > 0. Writes ceil(count / 8) bytes to `plus` and to `minus`, with zero padding.
ThresholdTally threshold_pass(float tau, const float* g, float* r, std::size_t count,
                              std::uint8_t* plus, std::uint8_t* minus);

// The plain reference. Same bits.
ThresholdTally threshold_pass_reference(float tau, const float* g, float* r, std::size_t count,
                                        std::uint8_t* plus, std::uint8_t* minus);

}  // namespace thinwire
