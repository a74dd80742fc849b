// report_table.h: what `thinwire compare` found out, as a row per run.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "apps/table.h"

namespace thinwire::apps {

// The run that the others are compared with: the one marked as "basis", as one of several methods
// is; else the first.
std::size_t basis_of(const Row& runs);
// Whether the runs are methods, of which one is the basis.
bool are_methods(const Row& runs);

// One row per run for the headline table, of the terminal and of the page alike: "run" (where its
// label is more than the scheme), "scheme", the keys of "final", "speed" (of methods "speed_up")
// against the basis, "target" and, where the run reaches it, "target_steps", "target_seconds" and
// "target_bytes"; and "replicas" in a word.
Rows headline(const Row& runs);

// The same rows as HTML, and a note on units.
std::string headline_table(const Row& runs);

}  // namespace thinwire::apps
