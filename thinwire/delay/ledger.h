// ledger.h: one worker's bookkeeping for one array of weights under delayed averaging. It does not
// communicate: rounds are closed, and later acknowledged with the mean of all workers' messages.
//
// Each array has two models. The *anchor* x is the sum of all acknowledged means, in order. It
// depends only on received bytes and is bit-identical on every worker. The worker's own weights w
// are ahead of it by the worker's own recent updates:
//
//     ledger   w = x + share * (own updates not yet acknowledged)
//     soft     the same, except for corrections that are due; the share is measured
//     none     w = x + (own updates of the open round)
//     pull     w follows its own updates, plus a share of x(then) - w(then) for each round
//
// An acknowledgement replaces a worker's own update by the mean. These corrections sum to zero over
// the workers. So where workers apply their own updates in full (share 1), the mean of their models
// is that of training without delay.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <deque>
#include <span>
#include <vector>

#include "thinwire/core/state.h"
#include "thinwire/core/view.h"
#include "thinwire/delay/options.h"
#include "thinwire/kernels/ledger.h"

namespace thinwire {

class Ledger {
 public:
  // The caller owns `weights`; the ledger changes them in place, and they must outlive it.
  // `workers` is the number of all workers. Correction::published is not supported: it works on
  // gradients (see published.h).
  Ledger(const DelayOptions& options, Bucket bucket, std::span<float> weights, std::size_t workers);

  // Ends a step: the weights keep the share of its update, and the open round records all of it.
  void step();
  // Ends a step and the open round: `message` becomes this worker's update in the round, and the
  // next round opens. A worker that does not take part sends zeros; its update stays open and is
  // sent with the next round.
  void close(std::span<float> message, bool take_part = true);

  // Acknowledges the oldest closed round. `mean` is the mean of all workers' decoded messages;
  // `own` is this worker's decoded message, for book b (else not read). Returns the squared lengths
  // of the correction that is now due and of the mean update (0 without clip=). settle() applies
  // the correction.
  struct Due {
    double correction = 0, mean = 0;
  };
  Due acknowledge(std::span<const float> mean, std::span<const float> own);
  // Adds `share` of the due correction to the weights; the rest stays due.
  void settle(double share);

  // After the last acknowledgement: the weights become bit-identical to the anchor. With book b,
  // what the compressor holds back becomes due: it returns to the weights as training goes on.
  void come_home();

  std::span<float> anchor() { return anchor_; }
  std::size_t in_flight() const { return kept_.size(); }
  // For tests of the laws, by element: w = anchor + lead (not for pull).
  std::vector<double> lead() const;
  // For tests of the laws, by element: the update that the open round will send.
  std::vector<double> open() const;

  void visit_state(StateVisitor& visitor);

 private:
  // A closed round in flight.
  struct Kept {
    std::vector<float>
        made;         // the part of the own update already in the weights; pull: the weights
    float share = 1;  // share of the own update that `made` is
  };

  std::vector<float> fresh();

  DelayOptions options_;
  std::size_t workers_;
  float share_;  // share of the open round
  Bucket bucket_;
  std::span<float> weights_;
  std::vector<float> anchor_;
  std::vector<float> start_;  // the weights at the start of the open step, plus later corrections
                              // (with share 1: at the start of the open round)
  std::vector<float> open_;   // with share < 1: the update of the finished steps of the open round
  std::deque<Kept> kept_;
  std::vector<float> due_;                 // correction not yet made
  std::vector<float> held_;                // book b: own updates that were not sent yet
  LedgerProducts sums_;                    // of own updates with the mean, over some rounds
  std::vector<std::vector<float>> spare_;  // arrays to reuse
};

}  // namespace thinwire
