// runs.h: the trainings of a comparison, each a process of its own.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "apps/plans.h"
#include "apps/table.h"

namespace thinwire::apps {

// What all runs have in common.
struct Training {
  Words passed;  // flags of `thinwire train`; those of a plan take the place of the same ones
  int seeds = 1;
  bool traced = false;  // keep a timeline of the first seed
  std::string trainer;  // a program instead of our own `train`, for tests
};

// Gets all runs so far, after each of them.
using Ended = std::function<void(const Row& runs)>;

// Trains by each plan, and gives per run "label", "scheme", "basis" where it is, "timeline" where
// it was traced, and what train wrote, with means over the seeds. A run without a result ends it
// all: an Error, BadInput where the run's flags could not be used, Interrupted after a signal. A
// run that failed with a result is kept, and an Error names it at the end.
void run_plans(const Training& training, const std::vector<Plan>& plans, const Ended& ended);

// A file's JSON; null when it cannot be read.
Row read_json(const std::string& path);

}  // namespace thinwire::apps
