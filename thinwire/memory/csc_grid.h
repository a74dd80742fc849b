// csc_grid.h: a bucket cut into equal chunks (the last may be shorter), and chosen chunks of it
// lying side by side, as they travel. Since all workers choose the same chunks, no index travels
// with them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace thinwire {

// Numbers of chunks, ascending.
using Picks = std::span<const std::uint32_t>;

struct CscGrid {
  std::size_t elements = 0;
  std::size_t chunk = 1;  // elements of each but the last

  std::size_t count() const { return (elements + chunk - 1) / chunk; }
  std::size_t first(std::size_t number) const { return number * chunk; }
  std::size_t size(std::size_t number) const { return std::min(chunk, elements - first(number)); }

  // So many of count() chunks are `density` of them; at least one of any.
  std::size_t share(double density) const;

  // Elements that `picks` chunks take when packed, whichever they are: a picked last chunk is
  // padded with zeros, so that buffers have their size before anything is picked.
  std::size_t packed(std::size_t picks) const { return std::min(picks * chunk, elements); }

  // The picked chunks of `from` (elements long), side by side in `out`, packed(picks.size()) long.
  void gather(const float* from, Picks picks, float* out) const;

  // Their place in `to` again, zeros everywhere else.
  void scatter(const float* packed, Picks picks, float* to) const;
};

}  // namespace thinwire
