// clock.h: the clock that times the parts of a step.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

namespace thinwire::train {

using Clock = std::chrono::steady_clock;

inline double seconds(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

}  // namespace thinwire::train
