// ledger_piece.h: weights that lie in several places, as delayed averaging in the memory of a
// device takes them: one piece per thread block.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace thinwire {

// Elements [first, first + count) of a bucket: somebody else's weights.
struct LedgerPiece {
  float* weights = nullptr;
  std::uint64_t first = 0, count = 0;

  bool operator==(const LedgerPiece&) const = default;
};
// Those of a bucket cover all of it.
using LedgerPieces = std::vector<LedgerPiece>;

inline constexpr std::size_t longest_piece = 4096;

// Adds [first, first + count) of a bucket.
inline void add_pieces(LedgerPieces& pieces, float* weights, std::size_t first, std::size_t count) {
  for (std::size_t at = 0; at < count; at += longest_piece)
    pieces.push_back({weights + at, first + at, std::min(longest_piece, count - at)});
}

}  // namespace thinwire
