// chart_axis.h: the ticks of an axis, and the text of their labels.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace thinwire::apps {

// How an axis formats its values. The crosshair's script has the same formats, by the unit's name.
enum class Unit { plain, percent, bytes, seconds };
std::string unit_text(double value, Unit unit);
const char* unit_name(Unit unit);

// Round values from `low` to `high`: about `wanted` of them, in steps of 1, 2 or 5 times a power of
// ten. A logarithmic axis has powers of ten, or 1-2-5 if those are few.
std::vector<double> linear_ticks(double low, double high, int wanted);
std::vector<double> log_ticks(double low, double high, std::size_t most);

}  // namespace thinwire::apps
