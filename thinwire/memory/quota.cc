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
  // A few more for small quotas, whose counts scatter.
  return {wanted, std::min(elements, wanted + wanted / 4 + 8)};
}

void Threshold::steer(std::size_t picked, const Quota& quota) {
  const double share = static_cast<double>(picked) / static_cast<double>(quota.wanted);
  if (share < 0.5) {
    value = 0;
    return;
  }
  // Gently: everything above the threshold has just gone, so the residual ends in an edge there. Raised by more than
  // v moves in a step, the threshold lets nothing pass until the edge has caught up; at a gain of 0.25 a fifth of all
  // steps fell out of the band.
  value *= 1 + 0.02 * std::min(share - 1, 1.0);
}

}  // namespace thinwire
