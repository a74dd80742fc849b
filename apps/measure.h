// measure.h: how the benchmarks measure.
//
// A time alone says little: on a shared machine it varies by half from minute to minute, with other
// load, the clock rate and the temperature. So nothing is measured alone. Every piece of work has a
// floor: the simplest code that moves the bytes which the work cannot avoid moving. Then:
//
//   1. Both are warmed up: memory has been touched, caches and thresholds have settled, and threads
//      are awake.
//   2. Work and floor alternate, and each pair gives one ratio. A disturbance that lasts longer
//      than a pair slows both, so the ratio stays the same. Both use the same arrays if they can,
//      so that each finds the caches in the same state. The order never changes: a floor that
//      writes into the state of a stateful step then disturbs every step equally.
//   3. Work that is too short for the clock is repeated inside its half of the pair.
//   4. The result is the median of the ratios, with their quartiles as the spread. A disturbance
//      that hits half a pair spoils that one ratio, but not the median.
//
// The times reported beside it are medians too, but only for this run on this machine under its
// current load. Compare ratios between runs, not times. Note that the median ratio is not the ratio
// of the median times.
//
// Work and floor use the same number of threads over the same partition; otherwise the floor would
// describe another machine.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>

#include "apps/table.h"

namespace thinwire::apps {

struct Effort {
  double seconds = 0.5;  // measuring time of one row; at least five pairs run in any case
  int warmup = 3;        // pairs before measuring
};

struct Timing {
  double seconds = 0;        // one run of the work
  double floor_seconds = 0;  // one run of the floor
  double ratio = 0;          // work divided by floor
  double ratio_low = 0;      // its quartiles
  double ratio_high = 0;
  std::size_t pairs = 0;
};

Timing measure(const std::function<void()>& work, const std::function<void()>& floor,
               const Effort& effort);

// Puts the timing into `row` under the names of its members.
void add_timing(Row& row, const Timing& timing);

// The q-th quantile (0 .. 1) of at least one sample. Sorts the samples.
double quantile(std::vector<double>& samples, double q);

// Calls body(first, count) for each share, on the threads of parallel_for(). The shares are those
// of DgcMemory: one per thread, of equal length, none below 2^17 elements.
void for_shares(std::size_t elements, const std::function<void(std::size_t, std::size_t)>& body);

}  // namespace thinwire::apps
