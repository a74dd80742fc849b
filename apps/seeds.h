// seeds.h: several trainings that differ in their seed alone, as one run of a comparison.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "apps/table.h"

namespace thinwire::apps {

// `documents` are what `thinwire train --json` wrote, one per seed, at least one. The result is the
// first of them with "final" replaced: numbers by their means, booleans by whether all were true;
// "seeds" is their number and "range" says from where to where the quality went. Rows, and so the
// curves, are the first seed's.
Row over_seeds(const std::vector<Row>& documents);

}  // namespace thinwire::apps
