// report_steps.h: where the time of a step goes: timelines of the workers, and bars by stage.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "apps/table.h"

namespace thinwire::apps {

// Both are empty if the runs lack the values.
std::string timeline_section(const Row& runs);
std::string stage_section(const Row& runs);

}  // namespace thinwire::apps
