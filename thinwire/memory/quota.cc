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
  if (picked * 5 < quota.wanted * 4) {
    value = 0;
    return;
  }
  // Counts fall with about the fourth power of the threshold in the tails that gradients have; a
  // quarter of the relative error is thus a full correction there, and a stable one where the tail
  // is flatter.
  const double error = static_cast<double>(picked) / static_cast<double>(quota.wanted) - 1;
  value *= 1 + 0.25 * std::min(error, 1.0);
}

}  // namespace thinwire
