// quota.cc: the count band.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/memory/quota.h"

#include <algorithm>
#include <cmath>

namespace thinwire {

Quota Quota::of(std::size_t elements, double density) {
  const auto exact =
      static_cast<std::size_t>(std::llround(density * static_cast<double>(elements)));
  const std::size_t wanted = std::min(std::max<std::size_t>(exact, 1), elements);
  // Small quotas get a few more, because their counts vary more.
  return {wanted, std::min(elements, wanted + wanted / 4 + 8)};
}

}  // namespace thinwire
