// csc_grid.cc: packs and unpacks chunks of a bucket.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/memory/csc_grid.h"

#include <cmath>

namespace thinwire {

std::size_t CscGrid::share(double density) const {
  const std::size_t chunks = count();
  const auto wanted = static_cast<std::size_t>(std::llround(density * static_cast<double>(chunks)));
  return std::min(std::max<std::size_t>(wanted, 1), chunks);
}

void CscGrid::gather(const float* from, Picks picks, float* out) const {
  float* const end = out + packed(picks.size());
  if (chunk == 1) {  // single elements: a loop without calls is faster
    for (const std::uint32_t pick : picks) *out++ = from[pick];
  } else {
    for (const std::uint32_t pick : picks) out = std::copy_n(from + first(pick), size(pick), out);
  }
  std::fill(out, end, 0.0f);
}

void CscGrid::scatter(const float* packed, Picks picks, float* to) const {
  std::size_t done = 0;  // elements of `to` that are written
  for (const std::uint32_t pick : picks) {
    const std::size_t at = first(pick), length = size(pick);
    std::fill(to + done, to + at, 0.0f);
    std::copy_n(packed, length, to + at);
    packed += length;
    done = at + length;
  }
  std::fill(to + done, to + elements, 0.0f);
}

}  // namespace thinwire
