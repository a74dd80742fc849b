// curve.h: a run's loss or quality over steps, bytes and time: per seed, and as a mean over seeds.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "apps/table.h"

namespace thinwire::apps {

// The mean and range of a value over the seeds.
struct Spread {
  double mean = 0, low = 0, high = 0;

  static Spread of(const std::vector<double>& values);  // at least one
};

struct Sample {
  double step = 0;
  double bytes = 0, seconds = 0;  // totals so far; NaN if the row lacks them
  Spread value;                   // NaN if the loss was not a number
};

using Curve = std::vector<Sample>;

// One curve of `key` ("loss", "accuracy", "perplexity") per seed: at least one, which may be empty.
// Rows without the key are left out. Rows of the loss that cover fewer steps than most are joined:
// when a report follows just after an evaluation, its row is the loss of a step or two, which would
// show as a spike.
std::vector<Curve> seed_curves(const Row& run, const std::string& key);

// The mean over the seeds, with the range of the values, at every step that all seeds have.
Curve mean_curve(const Row& run, const std::string& key);

}  // namespace thinwire::apps
