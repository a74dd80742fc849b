// tile_lists.h: the survivors of a bucket in device memory, listed by tile. A pass over the bucket
// appends the survivors of each tile to a pool, in whatever order its blocks run; the table finds
// them again in order of index.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace thinwire {

inline constexpr std::uint32_t tile_log2 = 12;
inline constexpr std::uint32_t tile_elements = 1u << tile_log2;

// Where the survivors of a tile are: pool entries [first, first + count), ascending by index.
struct TileRange {
  std::uint32_t first = 0;
  std::uint32_t count = 0;
};

// Pointers to device memory. Tile t holds elements [t * tile_elements, (t + 1) * tile_elements).
struct TileLists {
  TileRange* table = nullptr;      // one per tile
  std::uint32_t* index = nullptr;  // the pool: index of the element in the bucket,
  float* value = nullptr;          // its value,
  float* velocity = nullptr;       // and its momentum; null without momentum
};

}  // namespace thinwire
