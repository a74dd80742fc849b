// quota.h: the number of elements to send, and the threshold that achieves it.
//
// The threshold is carried over from the previous step and steered towards the quota. Outside its
// band it is estimated again from a sample. Elements at or above the threshold pass. When more than
// `most` pass, exactly the `wanted` largest of them are sent. So the choice depends only on the
// values and the threshold, never on positions, vector width or the number of threads.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace thinwire {

struct Quota {
  std::size_t wanted = 0;  // the target
  std::size_t most = 0;    // the cap, about 1.25 * wanted, which sizes the buffers

  // The quota for `density` of `elements`; at least one element, unless there are none.
  static Quota of(std::size_t elements, double density);
};

// A threshold that is kept from step to step.
struct Threshold {
  double value = 0;  // 0: unknown; it is estimated before the next pass

  // Adapts the value after a pass in which `picked` elements passed it.
  void steer(std::size_t picked, const Quota& quota);
};

}  // namespace thinwire
