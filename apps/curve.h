// curve.h: a run's loss or quality over steps, bytes and time: per seed, and as a mean over seeds.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "apps/table.h"

namespace thinwire::apps {

// Values that differ by seed.
struct Spread {
  double mean = 0, low = 0, high = 0;

  static Spread of(const std::vector<double>& values);  // at least one
};

struct Sample {
  double step = 0;
  double bytes = 0, seconds = 0;  // so far; NaN where the row does not say
  Spread value;                   // NaN where the loss was no number
};

using Curve = std::vector<Sample>;

// One curve of `key` ("loss", "accuracy", "perplexity") per seed; at least one, which may be empty.
// Rows without the key are left out. Rows of the loss that cover fewer steps than most are joined:
// where a report falls just behind an evaluation, its row is the loss of a step or two, a spike.
std::vector<Curve> seed_curves(const Row& run, const std::string& key);

// The mean over the seeds at every step that all of them have, with the range of the values.
Curve mean_curve(const Row& run, const std::string& key);

}  // namespace thinwire::apps
