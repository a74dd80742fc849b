// stream_ledger.h: a Ledger (ledger.h) in the memory of a device: the same bits, as work in two
// streams. Only what changes the weights is enqueued in the training's stream, one pass per step;
// everything else runs in a stream of the average's own. On the CPU all of it is done at once.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <vector>

#include "thinwire/core/buffer.h"
#include "thinwire/core/state.h"
#include "thinwire/core/verdict.h"
#include "thinwire/core/view.h"
#include "thinwire/delay/options.h"
#include "thinwire/kernels/ledger.h"

namespace thinwire {

class StreamLedger {
 public:
  // `side` must live longer. Copies the weights, and waits for that. `moments`: of second moments,
  // which corrections must not make negative. At most `depth` rounds are in flight.
  StreamLedger(const DelayOptions& options, Bucket bucket, const LedgerPieces& weights,
               std::size_t workers, std::size_t depth, bool moments, const OwnStream& side);

  // From now on the weights are there. It waits for `now`, the caller's stream, if they have moved.
  void place(const LedgerPieces& weights, Stream now);

  // The end of a step, as Ledger has it: settles what acknowledge() has made due, then takes the
  // update, and closes the round where `closes`; `settles`: then makes a part of the due
  // correction. move() changes the weights in the stream `now`, follow() does the rest in the side
  // stream: each must be held back until the other is done.
  struct End {
    bool takes = false, closes = false, settles = false;
  };
  void move(const End& end, float* message, Stream now);
  void follow(const End& end, float* message);
  // Whether move() has anything to do.
  bool moves(const End& end) const { return has_work(plan(end)); }

  // Acknowledges the oldest closed round, in the side stream. `own` is for book b (else not read).
  void acknowledge(const float* mean, const float* own, const Verdict* verdict);
  // After it: the share of the correction that is made next. In device memory.
  void limit_correction(const float* part) { part_ = part; }

  // After the last acknowledgement, as Ledger::come_home(): first the weights, then, in the side
  // stream, the rest.
  void come_home(Stream now);
  void forget_due();

  // In device memory, valid for work of the side stream.
  float* anchor() const { return anchor_.as<float>(); }
  float* due() const { return due_.as<float>(); }
  std::size_t count() const { return bucket_.elements(); }
  void copy_out(float* array, Stream now) const;  // the weights
  void copy_in(float* array, Stream now) const;
  void digest(std::uint64_t* to) const;  // of the anchor, in the side stream
  bool is_moments() const { return moments_; }

  // The parameter whose update was beyond the limit first; empty if none was. Waits.
  std::string bad_parameter() const;

  // Waits for the side stream, which must be behind all work on the weights.
  void visit_state(StateVisitor& visitor);

 private:
  // A closed round in flight.
  struct Kept {
    Buffer made;
    std::size_t place = 0;  // of its share
  };

  LedgerMove plan(const End& end) const;
  static bool has_work(const LedgerMove& move);
  LedgerArrays arrays() const;
  LedgerNumbers* numbers() const { return numbers_.as<LedgerNumbers>(); }
  float* share_of(const Kept& kept) const { return shares_.as<float>() + kept.place; }
  bool on_cpu() const { return side_.device().kind == Device::Kind::cpu; }
  Buffer room(std::size_t bytes) const;
  void visit_numbers(StateVisitor& visitor);

  DelayOptions options_;
  Bucket bucket_;
  std::size_t workers_;
  bool moments_;
  const OwnStream& side_;
  LedgerPieces weights_;
  Buffer pieces_;  // the same on the device
  Buffer anchor_, start_, due_, open_, held_;
  Buffer numbers_, shares_, sums_, one_;
  const float* part_ = nullptr;
  bool open_clear_ = true;   // no finished step is recorded in open_
  bool correction_ = false;  // acknowledged, and not settled yet
  std::deque<Kept> kept_;
  std::vector<Kept> spare_;
};

}  // namespace thinwire
