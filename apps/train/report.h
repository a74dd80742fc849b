// report.h: the output of a training, while it runs and at its end: a bar on a
// terminal, rows, JSON.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/table.h"
#include "apps/train/domain.h"
#include "apps/train/settings.h"

namespace thinwire::train {

// Sums of one worker, or means over all of them. The seconds of encode, wait and decode are those
// of the exchange's own thread; the part that ran during backward is not in `seconds`. Virtual
// workers take turns: `seconds` and `exposed` are those of all together.
struct Tally {
  double steps = 0;
  double skipped = 0;
  double loss = 0;
  double payload_bytes = 0, dense_bytes = 0, sent_bytes = 0;
  double seconds = 0;  // whole steps
  double compute = 0;  // forward and backward
  double encode = 0, wait = 0, decode = 0;
  double exposed = 0;  // waiting for averages after backward
  double optimizer = 0;
  double estimated = 0;  // of virtual workers: whole steps as workers on machines of their own,
  double link = 0;       // and the part of it in which messages are on the link

  std::vector<double> values() const;
  static Tally from(const std::vector<double>& values, double scale);
  Tally minus(const Tally& earlier) const;
};

// Whether there is an estimate: of virtual workers with a --link. Then nothing is ever waited for.
bool estimates(const Settings& settings);

// The columns that all rows and the final result share, per step. Virtual workers have no time per
// step: it is the process's, and the estimate has a name of its own.
apps::Row row_of(const Settings& settings, const Tally& tally);

class Reporter {
 public:
  // Only rank 0 prints.
  Reporter(const Settings& settings, bool speaks, Domain domain);

  void head(const std::string& engine, int world, std::size_t parameters, std::size_t buckets,
            std::uint64_t steps);
  // Called after every step. Draws at most ten times a second, and only on a terminal.
  void bar(std::uint64_t step, std::uint64_t steps, double loss, const Tally& so_far);
  void row(apps::Row row);
  // Prints the result.
  void end(const apps::Row& final);
  // Writes --json, if it is given.
  void write(const apps::Row& final, const apps::Row& about) const;

 private:
  const Settings& settings_;
  bool speaks_, headed_ = false;
  const char* measure_;
  apps::Rows rows_;
  double drawn_ = 0;
};

}  // namespace thinwire::train
