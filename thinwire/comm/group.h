// group.h: the workers of a job and the collectives among them. Engines: local (threads of one
// process), mpi, c10d; the emulated link wraps any of them. All ranks must issue the same
// collectives in the same order; the exchange sees to that by construction.
//
// Failure is an exception, thrown by wait() (or at once by the call): it names this rank, the
// collective, and the rank that is silent, gone or at odds with us. After a failure the group is
// unusable: end the job, restart from a checkpoint.
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

// What a collective costs by the message pattern of its engine (cost.h has the patterns). The
// emulated link turns it into seconds, and traffic() adds it up.
struct Cost {
  std::uint64_t steps = 0;     // messages that wait for each other: each pays the link's latency
  std::uint64_t path = 0;      // bytes that pass one after the other until the last rank is done
  std::uint64_t sent = 0;      // bytes, by this rank
  std::uint64_t received = 0;  // bytes, by this rank
  // Bytes after which the next step begins, where a step sends on while it still receives; 0: each
  // step waits for all of the one before.
  std::uint64_t piece = 0;
  std::uint64_t lead = 0;  // latencies before the first byte: who is ready, and for how much

  bool operator==(const Cost&) const = default;
};

// A collective under way. Buffers handed to it must live, and stay untouched, until it is done.
class Pending {
 public:
  class Work {
   public:
    virtual ~Work() = default;
    virtual void wait() = 0;        // blocks until done or failed; throws an Error
    virtual bool done() = 0;        // makes progress; true when wait() would not block
    virtual Cost cost() const = 0;  // after wait(): a gather knows its lengths only then
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

  // What it cost, once wait() has returned; nothing before, and for a group of one.
  const Cost& cost() const { return cost_; }

 private:
  std::unique_ptr<Work> work_;
  Cost cost_;
};

// The sum of the costs of all collectives that are done, as bytes of this rank.
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

  // Every rank sends `mine`, at most slot_bytes; rank r's bytes arrive at slots[r * slot_bytes],
  // their number in sizes[r]. slot_bytes is the same on all ranks, mine.size() need not be: an
  // engine sends the actual bytes where it can, whole slots where it must. `slots` is size() *
  // slot_bytes long. Our own bytes arrive too.
  virtual Pending all_gather(ConstBytes mine, std::size_t slot_bytes, Bytes slots,
                             std::span<std::size_t> sizes, Stream stream) = 0;

  // Rank r gets our piece r: `mine` holds size() slots of slot_bytes, of which piece r is
  // mine_sizes[r] long. What rank r sends us arrives at slots[r * slot_bytes], its length in
  // sizes[r].
  virtual Pending all_to_all(ConstBytes mine, std::span<const std::size_t> mine_sizes,
                             std::size_t slot_bytes, Bytes slots, std::span<std::size_t> sizes,
                             Stream stream) = 0;

  virtual Pending broadcast(Bytes data, int root, Stream stream) = 0;

  // Returns when all ranks have called it.
  virtual Pending barrier() = 0;
};

// Limits of an engine. A rank that does not take part within `timeout` is an error that names it.
struct GroupOptions {
  std::chrono::milliseconds timeout{60'000};
  // The longest single message where an engine has such a limit (mpi counts in int): longer buffers
  // travel in pieces. A multiple of 4, the same on all ranks.
  std::size_t piece_bytes = std::size_t{1} << 30;
};

}  // namespace thinwire
