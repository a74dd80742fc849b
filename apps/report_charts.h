// report_charts.h: loss and quality against steps, bytes and time.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "apps/table.h"

namespace thinwire::apps {

// Three charts of the quality, if runs have it more than once, and three of the loss.
std::string chart_sections(const Row& runs);

}  // namespace thinwire::apps
