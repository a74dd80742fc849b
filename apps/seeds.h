// seeds.h: combines several trainings that differ only in their seed into one run of a comparison.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "apps/table.h"

namespace thinwire::apps {

// `documents` are what `thinwire train --json` wrote: one per seed, at least one. The result is the
// first document with a new "final": numbers become means, booleans are true if all were true,
// "seeds" is the number of seeds, and "lowest" and "highest" are the range of the quality.
// "seed_rows" has the rows of every seed, as far as curves need them. With one seed there is no
// need for it: "rows" has them.
Row over_seeds(const std::vector<Row>& documents);

}  // namespace thinwire::apps
