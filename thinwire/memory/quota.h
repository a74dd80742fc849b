// quota.h: how many elements of how many may go, and the threshold that makes it so.
//
// The threshold is carried over from the step before and steered towards the quota; out of its band
// it is estimated anew from a sample. It decides who passes; when more pass than the quota's
// `most`, exactly the `wanted` largest of them go. Which elements go therefore depends on the
// values and the threshold only, never on positions, on vector width or on the number of threads.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace thinwire {

struct Quota {
  std::size_t wanted = 0;  // the target
  std::size_t most = 0;    // the cap, about 1.25 * wanted: buffers are sized by it

  // For `density` of `elements`; at least one of any.
  static Quota of(std::size_t elements, double density);
};

// The state of one threshold between steps.
struct Threshold {
  double value = 0;  // 0: unknown, to be estimated before the next pass

  // After a pass that `picked` so many, all by `value`.
  void steer(std::size_t picked, const Quota& quota);
};

}  // namespace thinwire
