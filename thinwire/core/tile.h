// tile.h: the unit in which a GPU works on a bucket. Chunks of frames are whole tiles.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace thinwire {

inline constexpr std::uint32_t tile_log2 = 12;
inline constexpr std::uint32_t tile_elements = 1u << tile_log2;

}  // namespace thinwire
