// stream_delayed.h: a DelayedAverage (delayed.h) of weights in the memory of a device. Weights,
// anchor, ledgers and messages stay there, and the bits are those of the CPU wherever the order of
// a collective's sums is (two workers, or schemes that gather).
//
//     thinwire::StreamDelayedAverage delayed({group, &nccl, device}, buckets, weights, config,
//                                            {.delay = 20});
//     for each step:
//       compute gradients; optimizer.step();   // enqueued in `stream`
//       delayed.finish_step(stream);           // enqueues; waits for nothing younger than D steps
//     delayed.drain(stream);
//
// In the caller's stream runs one pass per step over the weights. Everything else is in streams of
// its own; the caller's stream waits for them by events when a round is applied. The host waits
// only for bytes that pass through it (a Group of the host), when they are D steps old.
//
// With a device of kind cpu everything is done at once: the same code, tested on machines without a
// GPU.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "thinwire/core/options.h"
#include "thinwire/core/state.h"
#include "thinwire/core/view.h"
#include "thinwire/delay/options.h"
#include "thinwire/exchange/stream_exchange.h"
#include "thinwire/kernels/ledger_piece.h"

namespace thinwire {

// Throws an Error for options that only weights on the CPU have: the published correction, and a
// measured delay.
void check_in_streams(const DelayOptions& options);

class StreamDelayedAverage {
 public:
  // `weights` and `moments` by bucket (as DelayedAverage has them), in the memory of link.device;
  // they must be complete. A collective.
  StreamDelayedAverage(const StreamLink& link, const std::vector<Bucket>& buckets,
                       const std::vector<LedgerPieces>& weights, const Config& config,
                       const DelayOptions& options, const std::vector<LedgerPieces>& moments = {});
  ~StreamDelayedAverage();
  StreamDelayedAverage(const StreamDelayedAverage&) = delete;
  StreamDelayedAverage& operator=(const StreamDelayedAverage&) = delete;

  // From now on the weights and moments are there. The host waits where they have moved.
  void place(const std::vector<LedgerPieces>& weights, const std::vector<LedgerPieces>& moments,
             Stream now);

  // Call it before the optimizer's step, if you like: a message that the next finish_step() applies
  // and that has arrived is decoded and acknowledged while backward still runs.
  void expect_step();
  // As DelayedAverage. `now` is the stream in which the weights are computed. An error of a round
  // may appear some steps later; its mean is not applied.
  void finish_step(Stream now, bool take_part = true);
  void drain(Stream now);
  void await_arrivals();

  // In device memory. Later work of `now` sees it; call keep_off() when that work is enqueued.
  const float* anchor(std::size_t bucket, Stream now);
  void keep_off(Stream now);
  // The weights hold the anchor until hide_anchor(), which discards whatever they hold then.
  void show_anchor(Stream now);
  void hide_anchor(Stream now);
  // Locks the host's group for the caller's own collectives. Call it at the same step on all ranks.
  std::unique_lock<std::mutex> hold();

  std::uint64_t delay() const;
  std::uint64_t steps() const;
  std::uint64_t in_flight() const;
  Report report();
  // Waits for the device and for messages in flight.
  void visit_state(StateVisitor& visitor, Stream now);

  // For tests, and profiles: the stream of everything else.
  Stream side() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace thinwire
