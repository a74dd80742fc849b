// report.h: reports of single steps, as differences of sums.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "thinwire/exchange/exchange.h"

namespace thinwire::ddp {

struct Step {
  std::uint64_t number = 0;  // from 1, over all runs that were resumed
  bool skipped = false;
  Report report;  // of this step alone
};

// a + b, or with a negative sign a - b.
Report combine(const Report& a, const Report& b, double sign);

}  // namespace thinwire::ddp
