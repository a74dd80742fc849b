// group.h: the workers of a job and the collectives among them. Engines: local (threads of one
// process), mpi, c10d; the emulated link wraps any of them. All ranks must issue the same
// collectives in the same order; the exchange guarantees this by construction.
//
// Failure is an exception from wait() (or from the call itself). It names this rank, the
// collective, and the rank that is silent, lost or in disagreement. After a failure the group is
// unusable: end the job and restart from a checkpoint.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "thinwire/core/device.h"
#include "thinwire/core/dtype.h"
#include "thinwire/core/view.h"

namespace thinwire {

enum class ReduceOp : std::uint8_t { sum, max };

// The cost of a collective by the message pattern of its engine (cost.h has the patterns). The
// emulated link converts it to seconds, and traffic() adds it up.
struct Cost {
  std::uint64_t steps = 0;     // messages that wait for each other: each pays the link's latency
  std::uint64_t path = 0;      // bytes that pass one after another until the last rank is done
  std::uint64_t sent = 0;      // bytes, by this rank
  std::uint64_t received = 0;  // bytes, by this rank
  // Bytes after which the next step begins, if a step forwards data while it still receives. 0:
  // each step waits for all of the step before.
  std::uint64_t piece = 0;
  std::uint64_t lead = 0;  // latencies before the first byte: is the receiver ready, for how much

  bool operator==(const Cost&) const = default;
};

// A collective in flight. Its buffers must live, and stay untouched, until it is done.
class Pending {
 public:
  class Work {
   public:
    virtual ~Work() = default;
    virtual void wait() = 0;        // blocks until done or failed; throws an Error
    virtual bool done() = 0;        // makes progress; true when wait() would not block
    virtual Cost cost() const = 0;  // after wait(): a gather learns its lengths only then
  };

  Pending() = default;  // done already
  explicit Pending(std::unique_ptr<Work> work) : work_(std::move(work)) {}

  void wait() {
    if (!work_) return;
    work_->wait();
    cost_ = work_->cost();
    work_.reset();
  }
  bool done() { return !work_ || work_->done(); }

  // The cost, once wait() has returned. Zero before that, and for a group of one.
  const Cost& cost() const { return cost_; }

 private:
  std::unique_ptr<Work> work_;
  Cost cost_;
};

// The sum of the costs of all completed collectives, as bytes of this rank.
struct Traffic {
  std::uint64_t sent = 0;
  std::uint64_t received = 0;
  std::uint64_t collectives = 0;
};

class Group {
 public:
  virtual ~Group() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string name() const = 0;  // "local", "mpi", "mpi over an emulated 100mbit,20ms"
  virtual Traffic traffic() const = 0;

  // In place: `data` becomes the sum or maximum over all ranks, bit-identical on all of them.
  virtual Pending all_reduce(Bytes data, DType dtype, ReduceOp op, Stream stream) = 0;

  // Every rank sends `mine`, at most slot_bytes. Rank r's bytes arrive at slots[r * slot_bytes],
  // and sizes[r] is their number. slot_bytes must be the same on all ranks; mine.size() need not
  // be. An engine sends the actual bytes if it can, and whole slots otherwise. `slots` has size() *
  // slot_bytes bytes. Our own bytes arrive too.
  virtual Pending all_gather(ConstBytes mine, std::size_t slot_bytes, Bytes slots,
                             std::span<std::size_t> sizes, Stream stream) = 0;

  // Rank r gets our piece r. `mine` holds size() slots of slot_bytes each; piece r is the first
  // mine_sizes[r] bytes of slot r. Bytes from rank r arrive at slots[r * slot_bytes], and sizes[r]
  // is their number.
  virtual Pending all_to_all(ConstBytes mine, std::span<const std::size_t> mine_sizes,
                             std::size_t slot_bytes, Bytes slots, std::span<std::size_t> sizes,
                             Stream stream) = 0;

  virtual Pending broadcast(Bytes data, int root, Stream stream) = 0;

  // Completes when all ranks have called it.
  virtual Pending barrier() = 0;
};

// Limits of an engine. A rank that does not take part within `timeout` causes an error
// that names it.
struct GroupOptions {
  std::chrono::milliseconds timeout{60'000};
  // The longest single message, for engines that have such a limit (MPI counts in int). Longer
  // buffers are sent in pieces. It must be a multiple of 4 and the same on all ranks.
  std::size_t piece_bytes = std::size_t{1} << 30;
};

}  // namespace thinwire
