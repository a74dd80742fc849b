// seeds.h: several trainings that differ in their seed alone, as one run of a comparison.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "apps/table.h"

namespace thinwire::apps {

// `documents` are what `thinwire train --json` wrote, one per seed, at least one. The result is the
// first document with a new "final": numbers become means, booleans say whether all were true,
// "seeds" counts them, and the quality went from "lowest" to "highest". "seed_rows" has the rows of
// every seed, as far as curves need them; with one seed "rows" says it all.
Row over_seeds(const std::vector<Row>& documents);

}  // namespace thinwire::apps
