// warmup.h: the warm-up of the DGC paper: sparsity 75, 93.75, 98.4375, 99.6 %, then the final one,
// so that early gradients, which change quickly, are not delayed for long. (A warm-up of the
// learning rate is up to the user.)
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace thinwire {

struct Warmup {
  double density = 0.001;   // after the warm-up
  std::uint64_t steps = 0;  // length of the warm-up, in four equal stages; 0: no warm-up

  // The fraction sent in `step`: 1/4, 1/16, 1/64, 1/256 by stage, never below `density`.
  double density_at(std::uint64_t step) const;
};

}  // namespace thinwire
