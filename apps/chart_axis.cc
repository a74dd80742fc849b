// chart_axis.cc: positions of ticks and the text of values.
// SPDX-License-Identifier: Apache-2.0
#include "apps/chart_axis.h"

#include <array>
#include <cmath>
#include <initializer_list>

#include "apps/table.h"

namespace thinwire::apps {

std::string unit_text(double value, Unit unit) {
  if (unit == Unit::percent) return printed("%.4g", 100 * value) + " %";
  if (unit == Unit::seconds && value >= 1) return printed("%.6g", value) + " s";
  if (unit == Unit::seconds) return value == 0 ? "0" : seconds_text(value);
  if (unit == Unit::bytes) {
    constexpr std::array<const char*, 5> names = {" B", " kB", " MB", " GB", " TB"};
    std::size_t power = 0;
    for (; value >= 999.5 && power + 1 < names.size(); ++power) value /= 1000;
    return printed("%.4g", value) + names[power];
  }
  return printed("%.6g", value);
}

const char* unit_name(Unit unit) {
  constexpr std::array<const char*, 4> names = {"plain", "percent", "bytes", "seconds"};
  return names[static_cast<std::size_t>(unit)];
}

std::vector<double> linear_ticks(double low, double high, int wanted) {
  const double rough = (high - low) / wanted;
  const double ten = std::pow(10, std::floor(std::log10(rough)));
  double step = 10 * ten;
  for (const double factor : {5.0, 2.0, 1.0}) {
    if (factor * ten >= rough * 0.75) step = factor * ten;
  }
  std::vector<double> ticks;
  // Multiplies instead of adding: 0.1 added ten times is not 1.
  for (double i = std::ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; ++i) {
    ticks.push_back(i * step + 0.0);  // no "-0"
  }
  return ticks;
}

std::vector<double> log_ticks(double low, double high, std::size_t most) {
  const auto first = static_cast<int>(std::floor(std::log10(low)));
  const auto last = static_cast<int>(std::ceil(std::log10(high)));
  const auto collect = [&](std::initializer_list<double> factors, int stride) {
    std::vector<double> ticks;
    for (int power = first; power <= last; power += stride) {
      for (const double factor : factors) {
        const double tick = factor * std::pow(10, power);
        if (tick >= low * (1 - 1e-9) && tick <= high * (1 + 1e-9)) ticks.push_back(tick);
      }
    }
    return ticks;
  };
  std::vector<double> ticks = collect({1, 2, 5}, 1);
  for (int stride = 1; ticks.size() > most; ++stride) ticks = collect({1}, stride);
  return ticks;
}

}  // namespace thinwire::apps
