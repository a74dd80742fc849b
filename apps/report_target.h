// report_target.h: the cost of a result: the verdict, time and bytes to a target, a whole training.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "apps/table.h"

namespace thinwire::apps {

// The verdict as the page's first sentences. Empty if there is none.
std::string lead(const Row& runs);

// For each run, the steps, time and bytes to the target, with bars. Empty if there is no target.
std::string target_section(const Row& runs);

// For each run, the bytes and time of all its steps, and of a longer training at the same pace.
std::string cost_section(const Row& runs);

}  // namespace thinwire::apps
