// ledger.h: one worker's books on one array of weights under delayed averaging. No communication
// here: rounds are closed, and acknowledged with the mean of all workers' messages.
//
// Two models stand behind each array. The *anchor* x is the sum of all acknowledged means, in order:
// it depends on received bytes alone and is the same, bit for bit, on every worker. The worker's own
// weights w run ahead of it by what it did itself since:
//
//     ledger   w = x + share (own updates not yet acknowledged)
//     soft     the same, but for corrections that are due; the share is measured (next_share)
//     none     w = x + (own updates of the open round)
//     pull     w follows its own updates, plus a share of x(then) - w(then) for each round
//
// What an acknowledgement puts in place of a worker's own update sums to zero over the workers: where
// they make their own updates in full (share 1) the mean of their models is that of training without
// delay.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <deque>
#include <span>
#include <vector>

#include "thinwire/core/state.h"
#include "thinwire/core/view.h"
#include "thinwire/delay/options.h"

namespace thinwire {

class Ledger {
 public:
  // `weights` is the caller's, changes in place, and must outlive the ledger; `workers` in all.
  // Correction::published is not for here: it works on gradients (see published.h).
  Ledger(const DelayOptions& options, Bucket bucket, std::span<float> weights, std::size_t workers);

  // Ends a step: the weights keep the share of what it changed, the open round has all of it.
  void step();
  // Ends the open round, and a step: `message` becomes what this worker changed in it, and the next
  // round opens. A worker that misses the round sends zeros; what it did stays open and travels with
  // the next.
  void close(std::span<float> message, bool take_part = true);

  // The oldest closed round has come back. `mean`: of all workers' messages as they travelled;
  // `own`: this worker's share of it, for book b (else not read). Returns the squared lengths of the
  // correction that is now due and of the mean update (0 without clip=); settle() makes it.
  struct Due {
    double correction = 0, mean = 0;
  };
  Due acknowledge(std::span<const float> mean, std::span<const float> own);
  // Adds `share` of what is due to the weights; the rest stays due.
  void settle(double share);

  // After the last acknowledgement: the weights become the anchor, to the bit. With book b, what the
  // compressor holds back becomes due: it returns to the weights as training goes on.
  void come_home();

  std::span<float> anchor() { return anchor_; }
  std::size_t in_flight() const { return kept_.size(); }
  // By element, for the laws: w = anchor + lead (not for pull, whose weights go their own way).
  std::vector<double> lead() const;
  // By element, for the laws: what the open round will send.
  std::vector<double> open() const;

  void visit_state(StateVisitor& visitor);

 private:
  // A closed round in flight.
  struct Kept {
    std::vector<float> made;  // of the own update, at once; pull: where we were
    float share = 1;          // of it
  };

  std::vector<float> fresh();
  void listen(const Kept& kept, std::span<const float> mean);
  float next_share() const;

  DelayOptions options_;
  std::size_t workers_;
  float share_;  // of the open round
  Bucket bucket_;
  std::span<float> weights_;
  std::vector<float> anchor_;
  std::vector<float> start_;  // the weights when the open step began, corrected since
                              // (share 1: when the open round began)
  std::vector<float> open_;   // share < 1: what the ended steps of the open round did
  std::deque<Kept> kept_;
  std::vector<float> due_;                 // correction not yet made
  std::vector<float> held_;                // book b: own updates that were not sent yet
  double with_mean_ = 0, with_self_ = 0;   // products of own updates with the mean and themselves,
                                           // over some rounds
  std::vector<std::vector<float>> spare_;  // arrays to use again
};

}  // namespace thinwire
