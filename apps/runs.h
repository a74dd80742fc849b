// runs.h: the trainings of a comparison, each in its own process.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "apps/plans.h"
#include "apps/table.h"

namespace thinwire::apps {

// What all runs share.
struct Training {
  Words passed;  // flags for `thinwire train`; a plan's flags override them
  int seeds = 1;
  bool traced = false;  // keep a timeline of the first seed
  std::string trainer;  // a program that replaces our own `train`, for tests
};

// Gets all runs so far, after each run.
using Ended = std::function<void(const Row& runs)>;

// Trains by each plan. Each run has "label", "scheme", "basis" if it is the baseline, "timeline" if
// it was traced, and what train wrote, with means over the seeds. A run without a result ends the
// comparison with an Error, with BadInput if its flags could not be used, or with Interrupted after
// a signal. A run that failed but has a result is kept, and an Error names it at the end.
void run_plans(const Training& training, const std::vector<Plan>& plans, const Ended& ended);

// The JSON in a file, or null if it cannot be read.
Row read_json(const std::string& path);

}  // namespace thinwire::apps
