// warmup.cc: four stages, each sending a quarter of the one before.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/memory/warmup.h"

#include <algorithm>

namespace thinwire {

double Warmup::density_at(std::uint64_t step) const {
  if (step >= steps) return density;
  const std::uint64_t stage = step * 4 / steps;
  double fraction = 0.25;
  for (std::uint64_t i = 0; i < stage; ++i) fraction *= 0.25;
  return std::max(density, fraction);
}

}  // namespace thinwire
