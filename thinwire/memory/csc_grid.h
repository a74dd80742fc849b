// csc_grid.h: a bucket cut into equal chunks (the last may be shorter). The chosen chunks travel
// packed side by side. All workers choose the same chunks, so no indices travel.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace thinwire {

// The numbers of the chosen chunks, ascending.
using Picks = std::span<const std::uint32_t>;

struct CscGrid {
  std::size_t elements = 0;
  std::size_t chunk = 1;  // elements of each but the last

  std::size_t count() const { return (elements + chunk - 1) / chunk; }
  std::size_t first(std::size_t number) const { return number * chunk; }
  std::size_t size(std::size_t number) const { return std::min(chunk, elements - first(number)); }

  // The number of chunks that is `density` of all; at least one, unless there are none.
  std::size_t share(double density) const;

  // Elements of `picks` packed chunks, whichever they are. A shorter last chunk is padded with
  // zeros, so that the size of the buffers is known before anything is picked.
  std::size_t packed(std::size_t picks) const { return std::min(picks * chunk, elements); }

  // Copies the picked chunks of `from` to `out`, side by side; `out` has packed(picks.size())
  // elements.
  void gather(const float* from, Picks picks, float* out) const;

  // Copies packed chunks back to their places in `to`, and writes zeros everywhere else.
  void scatter(const float* packed, Picks picks, float* to) const;
};

}  // namespace thinwire
