// report_table.h: the results of `thinwire compare` as a row per run.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "apps/table.h"

namespace thinwire::apps {

// The baseline run: the one marked as "basis" (one of several methods is), otherwise the first.
std::size_t basis_of(const Row& runs);
// Whether the runs are methods, one of which is marked as "basis".
bool are_methods(const Row& runs);

// One row per run for the headline table, in the terminal and on the page: "run" (if its label is
// more than the scheme), "scheme", the keys of "final", "speed" (for methods "speed_up") relative
// to the baseline, "target" and, if the run reaches it, "target_steps", "target_seconds" and
// "target_bytes"; and "replicas" as one word.
Rows headline(const Row& runs);

// The same rows as HTML, and a note on units.
std::string headline_table(const Row& runs);

}  // namespace thinwire::apps
