// quota.h: the number of elements to send, and the threshold that achieves it.
//
// The threshold is carried over from the previous step and steered towards the quota. Elements at
// or above it pass. When more than `most` pass, exactly the `wanted` largest of them are sent, and
// the smallest of these is the next threshold. When fewer than half of the quota pass, it becomes
// unknown: in the next step all elements pass. So the choice depends only on the values and
// the threshold, never on positions, vector width, the number of threads or the device.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "thinwire/core/cuda.h"

namespace thinwire {

struct Quota {
  std::size_t wanted = 0;  // the target
  std::size_t most = 0;    // the cap, about 1.25 * wanted, which sizes the buffers

  // The quota for `density` of `elements`; at least one element, unless there are none.
  static Quota of(std::size_t elements, double density);
};

// A threshold that is kept from step to step.
struct Threshold {
  double value = 0;  // 0: unknown; every element but zeros passes

  // Adapts the value after a pass in which `picked` elements passed it, of `wanted`. Where there
  // are no elements (0 of 0), an unknown one stays unknown.
  THINWIRE_HD void steer(std::size_t picked, std::size_t wanted) {
    const double share = static_cast<double>(picked) / static_cast<double>(wanted);
    if (share < 0.5) {
      value = 0;
      return;
    }
    // The gain is small, because everything above the threshold was just sent, and so the residual
    // has an edge there. If the threshold rises by more than v moves in a step, nothing passes
    // until the edge has caught up. With a gain of 0.25 a fifth of all steps left the band.
    value *= 1 + 0.02 * (share - 1 < 1.0 ? share - 1 : 1.0);
  }
};

}  // namespace thinwire
