// curve.cc: turns rows into curves, and the curves of several seeds into one.
// SPDX-License-Identifier: Apache-2.0
#include "apps/curve.h"

#include <algorithm>
#include <limits>
#include <map>

#include "apps/run_clock.h"

namespace thinwire::apps {
namespace {

constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

Curve curve_of_rows(const Row& rows, const std::string& key) {
  Curve curve;
  if (!rows.is_array()) return curve;
  for (const Row& row : rows) {
    const Number step = number(row, "step"), value = number(row, key.c_str());
    // A loss that became infinite is not a number in JSON, so the line ends there.
    if (!step || (!value && key != "loss")) continue;
    curve.push_back({*step, number(row, "bytes_total").value_or(not_a_number),
                     total_seconds(row).value_or(not_a_number),
                     Spread::of({value.value_or(not_a_number)})});
  }
  return curve;
}

// Averages neighbouring rows, weighted by their steps, until a point covers as many steps as the
// longest row. A remainder at the end joins the last point unless it is at least half as long.
Curve joined(const Curve& rows) {
  double longest = 0, before = 0;
  for (const Sample& row : rows) {
    longest = std::max(longest, row.step - before);
    before = row.step;
  }
  Curve points;
  double sum = 0, steps = 0, last_sum = 0, last_steps = 0;
  before = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    sum += (rows[i].step - before) * rows[i].value.mean;
    steps += rows[i].step - before;
    before = rows[i].step;
    const bool ends = i + 1 == rows.size();
    if (steps < longest && !ends) continue;
    if (ends && 2 * steps < longest && !points.empty()) {
      sum += last_sum;
      steps += last_steps;
      points.pop_back();
    }
    points.push_back(rows[i]);
    points.back().value = Spread::of({sum / steps});
    last_sum = sum;
    last_steps = steps;
    sum = steps = 0;
  }
  return points;
}

Sample mean_sample(const std::vector<Sample>& samples) {
  std::vector<double> bytes, seconds, values;
  for (const Sample& sample : samples) {
    bytes.push_back(sample.bytes);
    seconds.push_back(sample.seconds);
    values.push_back(sample.value.mean);
  }
  return {samples[0].step, Spread::of(bytes).mean, Spread::of(seconds).mean, Spread::of(values)};
}

}  // namespace

Spread Spread::of(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  return {sum / static_cast<double>(values.size()), *low, *high};
}

std::vector<Curve> seed_curves(const Row& run, const std::string& key) {
  std::vector<Curve> curves;
  const auto add = [&](const Row& rows) {
    const Curve curve = curve_of_rows(rows, key);
    curves.push_back(key == "loss" ? joined(curve) : curve);
  };
  const Row seeds = part(run, "seed_rows");
  if (seeds.is_array()) {
    for (const Row& rows : seeds) add(rows);
  }
  if (curves.empty()) add(part(run, "rows"));
  return curves;
}

Curve mean_curve(const Row& run, const std::string& key) {
  const std::vector<Curve> seeds = seed_curves(run, key);
  std::map<double, std::vector<Sample>> by_step;
  for (const Curve& curve : seeds) {
    for (const Sample& sample : curve) by_step[sample.step].push_back(sample);
  }
  Curve mean;
  for (const auto& [step, samples] : by_step) {
    if (samples.size() == seeds.size()) mean.push_back(mean_sample(samples));
  }
  return mean;
}

}  // namespace thinwire::apps
