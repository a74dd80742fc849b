// energy.cc: selects instead of sorting: linear in the number of elements.
// SPDX-License-Identifier: Apache-2.0
#include "apps/energy.h"

#include <algorithm>
#include <functional>

namespace thinwire::apps {
namespace {

double sum_of_squares(std::span<const float> values) {
  double sum = 0;
  for (const float value : values) sum += static_cast<double>(value) * static_cast<double>(value);
  return sum;
}

std::vector<float> magnitudes(std::span<const std::span<const float>> parts) {
  std::size_t count = 0;
  for (const auto& part : parts) count += part.size();
  std::vector<float> all;
  all.reserve(count);
  for (const auto& part : parts) {
    for (const float value : part) all.push_back(value < 0 ? -value : value);
  }
  return all;
}

}  // namespace

Energy energy_of(std::span<const std::span<const float>> parts) {
  std::vector<float> values = magnitudes(parts);
  Energy energy{values.size(), sum_of_squares(values), {}};
  if (energy.total == 0) return energy;
  // From the widest part to the narrowest: each is selected from the previous one.
  auto end = values.end();
  for (std::size_t i = top_parts.size(); i-- > 0;) {
    const std::size_t count = (values.size() + top_parts[i] - 1) / top_parts[i];
    const auto last = values.begin() + static_cast<std::ptrdiff_t>(count);
    if (last < end) std::nth_element(values.begin(), last, end, std::greater<>());
    energy.top[i] = sum_of_squares(std::span(values).first(count)) / energy.total;
    end = last;
  }
  return energy;
}

}  // namespace thinwire::apps
