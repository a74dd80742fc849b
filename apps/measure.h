// measure.h: how the benchmarks measure.
//
// A time alone says little: on a shared machine it moves by half from minute to minute, with the
// neighbours, the clock and the temperature. So nothing is measured alone. Every piece of work has
// a floor: the simplest code that moves the bytes which the work cannot avoid moving. Then:
//
//   1. Both are warmed up: memory is touched, caches and thresholds are as they will be, threads
//      are awake.
//   2. Work and floor run in turn, and each pair gives one ratio. What slows the machine for longer
//      than a pair slows both, and the ratio stays. Both go over the same arrays where they can, so
//      that each finds the caches as the other does. The turn is never changed: a floor that writes
//      into the state of a stateful step then disturbs every step alike.
//   3. What runs shorter than a clock can tell well is repeated inside its half of the pair.
//   4. The result is the median of the ratios, with their quartiles as the spread. A disturbance
//      that hits half a pair spoils that one ratio and no median.
//
// The times reported beside it are medians too, but of this run on this machine as busy as it was;
// compare ratios between runs, not times. Note that the median ratio is not the ratio of the median
// times.
//
// Work and floor use the same number of threads over the same partition, or the floor would be that
// of another machine.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>

#include "apps/table.h"

namespace thinwire::apps {

struct Effort {
  double seconds = 0.5;  // of measuring, for one row; at least five pairs are run whatever it is
  int warmup = 3;        // pairs before that
};

struct Timing {
  double seconds = 0;        // one run of the work
  double floor_seconds = 0;  // one run of the floor
  double ratio = 0;          // work by floor
  double ratio_low = 0;      // its quartiles
  double ratio_high = 0;
  std::size_t pairs = 0;
};

Timing measure(const std::function<void()>& work, const std::function<void()>& floor,
               const Effort& effort);

// Puts the timing into `row` under the names of its members.
void add_timing(Row& row, const Timing& timing);

// The q-th quantile (0 .. 1) of some samples, at least one; sorts them.
double quantile(std::vector<double>& samples, double q);

// The partition that DgcMemory uses: equal shares, one per thread, none below 2^17 elements. Calls
// body(first, count) for each share, on the threads of parallel_for().
void for_shares(std::size_t elements, const std::function<void(std::size_t, std::size_t)>& body);

}  // namespace thinwire::apps
