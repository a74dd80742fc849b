// threshold_rule.h: the numbers of a threshold, for host and CUDA code: its range, how the next one
// follows from a step, and the head of a payload.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "thinwire/core/cuda.h"

namespace thinwire::threshold_rule {

inline constexpr float smallest = std::numeric_limits<float>::min();
inline constexpr float largest = std::numeric_limits<float>::max() / 4;

// Elements that a first threshold is estimated from, evenly spaced: number k of `samples`.
inline constexpr std::uint32_t most_samples = 65536;
THINWIRE_HD constexpr std::uint32_t sample_at(std::uint32_t k, std::uint32_t count,
                                              std::uint32_t samples) {
  return static_cast<std::uint32_t>(std::uint64_t{count} * k / samples);
}

// The payload: the layout as a u32, a binary32 tau per segment, a u16 length per block (quanta.h),
// and the blocks. Layouts 0 and 1 are retired: they had one form for the whole bucket.
inline constexpr std::uint32_t layout = 2;
THINWIRE_HD constexpr std::size_t head_bytes(std::size_t segments, std::size_t blocks) {
  return sizeof layout + segments * sizeof(float) + blocks * sizeof(std::uint16_t);
}

struct Sweep {
  std::uint64_t sent = 0;  // elements of the segment
  std::uint64_t wanted = 0;
  float largest = 0;  // rest
};

// The threshold after a step with `tau`; `known` is what it was before, 0 where it was not. Goes
// gently towards the quota, because sending leaves an edge below tau. But an element whose gradient
// exceeds tau in every step gains more than it can send, which the count never shows. So tau also
// rises while a residual exceeds four quanta.
THINWIRE_HD inline double steered(double known, float tau, const Sweep& sweep, bool keeps) {
  if (known == 0 && tau == smallest) return known;  // nothing was there to go by
  double excess = static_cast<double>(sweep.sent) / static_cast<double>(sweep.wanted) - 1;
  const double quanta = static_cast<double>(sweep.largest) / static_cast<double>(tau);
  if (keeps && quanta > 4 && quanta / 4 > excess) excess = quanta / 4;
  const double next = tau * (1 + 0.05 * (excess < 4.0 ? excess : 4.0));
  return next < smallest ? smallest : next > largest ? largest : next;
}

}  // namespace thinwire::threshold_rule
