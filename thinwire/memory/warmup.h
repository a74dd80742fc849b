// warmup.h: the paper's warm-up: sparsity 75, 93.75, 98.4375, 99.6 %, then the final one, so that
// early, quickly changing gradients are not held back for long. (The learning rate's own warm-up is
// the user's.)
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace thinwire {

struct Warmup {
  double density = 0.001;   // in the end
  std::uint64_t steps = 0;  // of the whole warm-up, in four equal stages; 0: none

  // Fraction sent in `step`: 1/4, 1/16, 1/64, 1/256 by stage, never below `density`.
  double density_at(std::uint64_t step) const;
};

}  // namespace thinwire
