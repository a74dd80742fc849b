// pipeline.h: carries the messages of delayed averaging in the background. Several rounds may be under
// way at once; they start, and arrive, in one order on all ranks. A thread of its own encodes them,
// issues the collectives, and decodes the oldest when it is there.
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
  Message mean;        // over the workers
  Message own;         // this worker's part as it travelled; only where asked for
  double seconds = 0;  // from start() to arrival; 0: it comes from a loaded state
};

class Pipeline {
 public:
  // At most `depth` rounds are under way at once. `own`: hand back this worker's part too. Neither
  // for schemes that take rounds in turn (fit.h). The group must outlive this, and others may use it
  // under hold() only.
  Pipeline(Group& group, const std::vector<Bucket>& buckets, const Config& config,
           std::size_t depth, bool own);
  ~Pipeline();
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  // Hands a message over; returns at once. `digests`, of whatever must be the same on all ranks, one
  // per bucket or none, travel beside it: a difference is an error that names the rank and the
  // bucket when the round arrives. All ranks give some, or none, with the same rounds. `step` is the
  // training's: with the first round, and after a load, it must be the same on all ranks.
  void start(Message message, std::vector<std::uint32_t> digests = {}, std::uint64_t step = 0);
  // Whether take() would return at once.
  bool ready() const;
  // Waits for the oldest round that was not taken yet. Throws what went wrong with it.
  Round take();
  std::size_t in_flight() const;

  // Lets the caller use the group: all rounds that were started have issued their collectives, so
  // that ranks which call this after the same rounds agree on the order.
  std::unique_lock<std::mutex> hold();

  // Waits until all rounds under way have arrived; take() then returns them at once. After the same
  // rounds on all ranks.
  void await_arrivals();

  Report report() const;
  void observe(Observer observer);
  // Waits likewise: the means of all rounds under way belong to the state.
  void visit_state(StateVisitor& visitor);

 private:
  class Engine;
  std::unique_ptr<Engine> engine_;
};

}  // namespace thinwire
