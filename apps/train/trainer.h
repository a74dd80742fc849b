// trainer.h: one process's training from the first step, or from a checkpoint, to the last: that of
// one worker, or of all virtual ones. No torch here.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/train/averaging.h"
#include "apps/train/crew.h"
#include "apps/train/estimate.h"
#include "apps/train/launch.h"
#include "apps/train/learner.h"
#include "apps/train/report.h"
#include "apps/train/settings.h"
#include "apps/train/stop.h"
#include "apps/train/trace.h"
#include "thinwire/comm/group.h"

namespace thinwire::train {

class Trainer {
 public:
  // Both are collectives. They throw BadInput for errors that the user can fix.
  Trainer(const Settings& settings, Group& group, const Place& place, const Hardware& hardware);
  // Throws Interrupted when a signal ended it early (stop.h). The checkpoint is then complete.
  void run();

 private:
  void average(const Hardware& hardware);
  bool goes_on();
  void take_step();
  double compute(int rank, const Learner::Phase& phase);
  Learner::Computed serve(const Learner::Ready& submit);
  double estimate(const Averaging::Result& result);
  float rate_at(std::uint64_t step) const;
  void after_step();
  template <typename Wait>
  void on_the_clock(Wait wait);
  void check_replicas();
  void watch_exchange();
  void add_score(apps::Row& row);
  void write_row(bool evaluate);
  void stop_early();
  void finish();
  std::string how_to_go_on() const;
  void check_skips() const;

  Report report_of(int rank);
  Tally& sums(int rank) { return sums_[crew_.place(rank)]; }
  Tally tally(int rank);
  Tally mean_tally();
  apps::Row columns(const Tally& tally) const;
  void visit_state(StateVisitor& visitor);
  std::uint32_t checksum();
  void save();
  void resume();
  void load(int rank);
  [[noreturn]] void refuse_steps(int rank) const;

  const Settings& settings_;
  Group& group_;
  const Place place_;
  const Crew crew_;
  Learner learner_;
  Reporter reporter_;
  Trace trace_;
  std::uint64_t steps_, end_, step_ = 0, first_ = 0;
  std::unique_ptr<Averaging> averaging_;
  std::string engine_;            // what carries the gradients
  std::optional<Stop> stop_;      // set in run()
  std::uint64_t saved_ = 0;       // step of the last checkpoint
  std::vector<Tally> sums_;       // each rank in this run; tally() adds the exchange's share
  std::vector<double> computed_;  // by rank: seconds of the last step
  StepEstimate estimate_;
  Tally row_start_;  // means at the last row
  double last_loss_ = 0;
  std::uint64_t skipped_in_a_row_ = 0;  // most recent steps
  apps::Row last_row_;
};

}  // namespace thinwire::train
