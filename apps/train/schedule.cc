// schedule.cc: the shapes of a learning rate schedule.
// SPDX-License-Identifier: Apache-2.0
#include "apps/train/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <sstream>

#include "thinwire/core/error.h"

namespace thinwire::train {
namespace {

[[noreturn]] void refuse(const std::string& text) {
  fail("expected constant, linear, cosine or step:E1,E2,... with rising epochs, got '", text, "'");
}

std::vector<double> parse_epochs(const std::string& list, const std::string& text) {
  std::vector<double> epochs;
  std::istringstream in(list);
  for (std::string part; std::getline(in, part, ',');) {
    std::size_t used = 0;
    try {
      epochs.push_back(std::stod(part, &used));
    } catch (const std::exception&) {
      refuse(text);
    }
    if (used != part.size() || !(epochs.back() > 0)) refuse(text);
  }
  const bool rising = std::is_sorted(epochs.begin(), epochs.end(), std::less_equal<>());
  if (epochs.empty() || !rising) refuse(text);
  return epochs;
}

}  // namespace

Schedule Schedule::parse(const std::string& text) {
  Schedule schedule;
  if (text == "constant") return schedule;
  if (text == "linear" || text == "cosine") {
    schedule.shape = text == "linear" ? Shape::linear : Shape::cosine;
    return schedule;
  }
  if (!text.starts_with("step:")) refuse(text);
  schedule.shape = Shape::step;
  schedule.epochs = parse_epochs(text.substr(5), text);
  return schedule;
}

double Schedule::at(std::uint64_t step, std::uint64_t steps, std::uint64_t steps_per_epoch) const {
  const auto now = static_cast<double>(step);
  if (step < warmup) return peak * (now + 1) / static_cast<double>(warmup);
  const auto rest = static_cast<double>(std::max(steps, warmup + 1) - warmup);
  const double done = std::min(1.0, (now - static_cast<double>(warmup)) / rest);
  switch (shape) {
    case Shape::constant:
      return peak;
    case Shape::linear:
      return peak * (1 - done);
    case Shape::cosine:
      return peak * 0.5 * (1 + std::cos(std::numbers::pi * done));
    case Shape::step:
      break;
  }
  const double epoch = now / static_cast<double>(steps_per_epoch);
  const auto passed =
      std::count_if(epochs.begin(), epochs.end(), [&](double border) { return epoch >= border; });
  return peak * std::pow(0.1, static_cast<double>(passed));
}

}  // namespace thinwire::train
