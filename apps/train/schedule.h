// schedule.h: the learning rate as a function of the step.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace thinwire::train {

struct Schedule {
  enum class Shape { constant, linear, cosine, step };
  Shape shape = Shape::constant;
  std::vector<double> epochs;  // shape step: divides by ten after each of them
  double peak = 0.1;
  std::uint64_t warmup = 0;  // steps of linear warm-up before the schedule

  // Parses "constant", "linear" (to zero), "cosine" (to zero) or "step:80,120". Throws an Error.
  static Schedule parse(const std::string& text);

  // The learning rate of step `step` (counted from 0) out of `steps`.
  double at(std::uint64_t step, std::uint64_t steps, std::uint64_t steps_per_epoch) const;
};

}  // namespace thinwire::train
