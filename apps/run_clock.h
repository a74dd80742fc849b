// run_clock.h: the times of a comparison: measured, or estimated of virtual workers with a --link,
// or none of virtual workers without one.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <string>

#include "apps/report_parts.h"

namespace thinwire::apps {

enum class RunClock { measured, estimated, none };

// Of a run's "final".
inline Number step_seconds(const Row& final) {
  const Number measured = number(final, "seconds_per_step");
  return measured ? measured : number(final, "estimated_seconds_per_step");
}

// Of a row: since the start.
inline Number total_seconds(const Row& row) {
  const Number measured = number(row, "seconds_total");
  return measured ? measured : number(row, "estimated_seconds_total");
}

inline bool is_virtual(const Row& run) { return number(run, "virtual").has_value(); }

// One for all runs, so that no measured time is compared with an estimate unnoticed.
inline RunClock clock_of(const Row& runs) {
  const auto any = [&](const auto& of) { return std::any_of(runs.begin(), runs.end(), of); };
  if (any([](const Row& run) { return is_virtual(run) && !step_seconds(part(run, "final")); }))
    return RunClock::none;
  return any(is_virtual) ? RunClock::estimated : RunClock::measured;
}

// "time", or "estimated time".
inline std::string time_word(RunClock clock) {
  return clock == RunClock::estimated ? "estimated time" : "time";
}

}  // namespace thinwire::apps
