// pipeline.h: averages the messages of delayed averaging in the background. Several rounds may be
// in flight; they start and arrive in the same order on all ranks. A thread encodes them, issues
// the collectives, and decodes the oldest round when it has arrived.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "thinwire/comm/group.h"
#include "thinwire/core/options.h"
#include "thinwire/core/state.h"
#include "thinwire/core/view.h"
#include "thinwire/exchange/exchange.h"

namespace thinwire {

// A message: one array per bucket.
using Message = std::vector<std::vector<float>>;

struct Round {
  Message mean;        // mean over the workers
  Message own;         // this worker's message as others decoded it; only with `own`
  double seconds = 0;  // from start() to arrival; 0 for a round from a loaded state
};

class Pipeline {
 public:
  // At most `depth` rounds are in flight. With `own`, take() also returns this worker's decoded
  // message. A depth above 1 and `own` do not work with every scheme (fit.h). The group must
  // outlive this object; others may use it under hold() only.
  Pipeline(Group& group, const std::vector<Bucket>& buckets, const Config& config,
           std::size_t depth, bool own);
  ~Pipeline();
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  // Starts a round with this message, and returns at once. `digests` (one per bucket, or none) are
  // sent along: they must be the same on all ranks, and a difference is an error that names the
  // rank and the bucket when the round arrives. For a given round, either all ranks pass digests or
  // none does. `step` is the training step; in the first round, and after a load, it must be the
  // same on all ranks.
  void start(Message message, std::vector<std::uint32_t> digests = {}, std::uint64_t step = 0);
  // Whether take() would return at once.
  bool ready() const;
  // Waits for the oldest round that was not taken yet. Throws the error of the round.
  Round take();
  std::size_t in_flight() const;

  // Lets the caller use the group. It waits until all started rounds have issued their collectives,
  // so that ranks which call it after the same rounds agree on the order.
  std::unique_lock<std::mutex> hold();

  // Waits until all rounds in flight have arrived; take() then returns them at once. Call it after
  // the same rounds on all ranks.
  void await_arrivals();

  Report report() const;
  void observe(Observer observer);
  // Waits likewise: the means of all rounds in flight belong to the state.
  void visit_state(StateVisitor& visitor);

 private:
  class Engine;
  std::unique_ptr<Engine> engine_;
};

}  // namespace thinwire
