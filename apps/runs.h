// runs.h: the trainings of a comparison, each a process of its own.
// SPDX-License-Identifier: Apache-2.0
#pragma once

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

// Trains by each plan, and gives per run "label", "scheme", "basis" where it is, "timeline" where
// it was traced, and what train wrote, with means over the seeds. A run that fails ends it all: an
// Error, or BadInput where the run's flags could not be used.
Row run_plans(const Training& training, const std::vector<Plan>& plans);

// A file's JSON; null when it cannot be read.
Row read_json(const std::string& path);

}  // namespace thinwire::apps
