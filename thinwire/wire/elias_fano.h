// elias_fano.h: the Elias-Fano coder of indices: plain low bits, and a bitmap of the high parts. A
// decoder can work in parallel.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "thinwire/core/cuda.h"
#include "thinwire/core/status.h"
#include "thinwire/core/view.h"

namespace thinwire {

inline constexpr unsigned most_low_bits = 31;

// The bytes of the low parts of `count` indices. The bitmap follows.
THINWIRE_HD constexpr std::uint64_t elias_fano_low_bytes(std::uint64_t count, unsigned low) {
  return (count * low + 7) / 8;
}

struct EliasFanoPlan {
  std::uint8_t low = 0;
  std::uint64_t bytes = 0;  // exact
};

// Finds the number of low bits that makes the code of `count` indices, up to `last`, shortest.
THINWIRE_HD constexpr EliasFanoPlan elias_fano_plan(std::uint64_t count, std::uint64_t last) {
  EliasFanoPlan best;
  for (unsigned low = 0; low <= most_low_bits; ++low) {
    const std::uint64_t bytes = elias_fano_low_bytes(count, low) + (count + (last >> low) + 7) / 8;
    if (low == 0 || bytes < best.bytes) best = {static_cast<std::uint8_t>(low), bytes};
  }
  return best;
}

// Writes the plan's bytes into `out`, which has room for them.
void elias_fano_encode(std::span<const std::uint32_t> indices, std::uint8_t low, Bytes out);

Status elias_fano_decode(std::uint8_t low, ConstBytes bytes, std::uint32_t extent,
                         std::span<std::uint32_t> out);

}  // namespace thinwire
