// strata.h: a random choice of blocks that all workers share: the blocks are divided into strata of
// equal length (up to one), and one block of each is drawn. For host and CUDA code.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "thinwire/core/cuda.h"
#include "thinwire/core/random.h"

namespace thinwire {

struct Strata {
  std::uint64_t blocks = 0;  // below 2^32
  std::uint64_t count = 1;   // strata, at most `blocks`

  // The first block of a stratum.
  THINWIRE_HD std::uint64_t first(std::uint64_t i) const { return blocks * i / count; }

  THINWIRE_HD std::uint32_t length(std::uint64_t i) const {
    return static_cast<std::uint32_t>(first(i + 1) - first(i));
  }

  // The block that is drawn from a stratum. `stream` is the seed of all draws of a step.
  THINWIRE_HD std::uint32_t pick(std::uint64_t stream, std::uint64_t i) const {
    return static_cast<std::uint32_t>(first(i)) + random_below(stream, i, length(i));
  }
};

}  // namespace thinwire
