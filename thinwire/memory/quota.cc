// quota.cc: the count band and the steering inside it.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/memory/quota.h"

#include <algorithm>
#include <cmath>

namespace thinwire {

Quota Quota::of(std::size_t elements, double density) {
  if (elements == 0) return {};
  const auto exact =
      static_cast<std::size_t>(std::llround(density * static_cast<double>(elements)));
  const std::size_t wanted = std::clamp<std::size_t>(exact, 1, elements);
  // Small quotas get a few more, because their counts vary more.
  return {wanted, std::min(elements, wanted + wanted / 4 + 8)};
}

void Threshold::steer(std::size_t picked, const Quota& quota) {
  const double share = static_cast<double>(picked) / static_cast<double>(quota.wanted);
  if (share < 0.5) {
    value = 0;
    return;
  }
  // The gain is small, because everything above the threshold was just sent, and so the residual
  // has an edge there. If the threshold rises by more than v moves in a step, nothing passes until
  // the edge has caught up. With a gain of 0.25 a fifth of all steps left the band.
  value *= 1 + 0.02 * std::min(share - 1, 1.0);
}

}  // namespace thinwire
