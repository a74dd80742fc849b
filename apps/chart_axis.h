// chart_axis.h: ticks of an axis, and values as its labels spell them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace thinwire::apps {

// How an axis spells its values. The crosshair's script has the same, by the unit's name.
enum class Unit { plain, percent, bytes, seconds };
std::string unit_text(double value, Unit unit);
const char* unit_name(Unit unit);

// Round values from `low` to `high`: steps of 1, 2 or 5 times a power of ten, about `wanted` of
// them; and, for a logarithmic axis, powers of ten, or 1-2-5 where there are few of those.
std::vector<double> linear_ticks(double low, double high, int wanted);
std::vector<double> log_ticks(double low, double high, std::size_t most);

}  // namespace thinwire::apps
