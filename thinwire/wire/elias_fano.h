// elias_fano.h: the Elias-Fano coder of indices: plain low bits, and a bitmap of the high parts. A
// decoder can work in parallel.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "thinwire/core/status.h"
#include "thinwire/core/view.h"

namespace thinwire {

struct EliasFanoPlan {
  std::uint8_t low = 0;
  std::size_t bytes = 0;  // exact
};

// Finds the number of low bits that makes the code shortest.
EliasFanoPlan elias_fano_plan(std::span<const std::uint32_t> indices);

// Writes the plan's bytes into `out`, which has room for them.
void elias_fano_encode(std::span<const std::uint32_t> indices, std::uint8_t low, Bytes out);

Status elias_fano_decode(std::uint8_t low, ConstBytes bytes, std::uint32_t extent,
                         std::span<std::uint32_t> out);

}  // namespace thinwire
