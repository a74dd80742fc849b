// sums.h: the two algorithms of all-reduce: short sums in two steps, long sums around a ring.
// Internal to the engine.
//
// Both divide the buffer into one share per rank and add share s in the order of ranks s, s + 1,
// ..., s - 1, so both give the same bits. When all ranks send to all others at once, several flows
// meet at each receiver's link, and some end before others. At 100 Mbit/s shares of 113 kB took
// 19 % more than their bytes in one piece, and 10 % longer in two segments, because the first sums
// use the links that are done. More segments gain no more, and cost time on fast links. Around a
// ring each link carries one steady flow and is never idle. Sending to one peer after another took
// even longer, because each change of peer restarts a TCP flow. But a ring has 2 (N - 1) steps.
// Their latencies overlap with the transfer once a share takes longer on the wire than one latency
// plus one segment, so only long shares use it (takes_ring()).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "thinwire/comm/c10d/messages.h"
#include "thinwire/comm/cost.h"
#include "thinwire/comm/reduce.h"

namespace thinwire::torch_engine {

inline std::size_t count_of(const World& world) { return static_cast<std::size_t>(world.size()); }

// A buffer divided into shares, and each share into segments: while one segment is added, the next
// is on the wire.
class Cut {
 public:
  Cut(Bytes data, std::size_t element, int shares, int ranks)
      : data_(data), element_(element), shares_(shares) {
    segments_ = segments_of(longest(), ranks);
  }

  std::size_t segments() const { return segments_; }
  std::size_t longest() const { return share_end(data_.size(), element_, 0, shares_); }

  Bytes part(int share, std::size_t segment) const {
    const std::size_t start =
        share == 0 ? 0 : share_end(data_.size(), element_, share - 1, shares_);
    const std::size_t end = share_end(data_.size(), element_, share, shares_);
    const std::size_t elements = (end - start) / element_;
    const std::size_t from = elements * segment / segments_,
                      to = elements * (segment + 1) / segments_;
    return data_.subspan(start + from * element_, (to - from) * element_);
  }

 private:
  Bytes data_;
  std::size_t element_;
  int shares_;
  std::size_t segments_ = 1;
};

// Every rank sums one share of the buffer and sends the sum to all others: two steps, and as many
// bytes as a ring. Two ranks save the second step: each sums the whole buffer. A sum has the same
// bits from both sides (reduce.h), so the results agree. A share is summed in one fixed order and
// travels in segments: while one is being added, the next is on the wire.
class Shares {
 public:
  Shares(World& world, const Job& job, Bytes data)
      : world_(world),
        call_(job.position.call),
        cut_(data, size_of(call_.dtype), whole() ? 1 : world.size(), world.size()),
        receives_(world, job),
        sends_(world, job) {
    scratch_ = world.pool().take((count_of(world) - 1) * cut_.longest());
  }

  bool has_steps() const { return !whole(); }

  // Also posts the receives of the sums. A rank sends its sum only after it has our contribution,
  // so the memory that the sum overwrites has been sent by then.
  void begin() {
    for_parts(
        [&](std::size_t segment, int peer) { receives_.receive(arrival(segment, peer), peer); });
    for_parts([&](std::size_t segment, int peer) { sends_.send(part(peer, segment), peer); });
    if (whole()) return;
    for_parts([&](std::size_t segment, int peer) { receives_.receive(part(peer, segment), peer); });
  }

  void finish() {
    for (std::size_t segment = 0; segment < cut_.segments(); ++segment) {
      const Bytes sum = part(world_.rank(), segment);
      if (whole()) sends_.wait_next();  // the data to send must not change earlier
      for_others(world_, [&](int peer) {
        receives_.wait_next();
        reduce_into(sum, arrival(segment, peer), call_.dtype, call_.op);
      });
      if (!whole()) for_others(world_, [&](int peer) { sends_.send(sum, peer); });
    }
    receives_.wait_all();
    sends_.wait_all();
  }

 private:
  bool whole() const { return world_.size() == 2; }

  template <typename Body>
  void for_parts(Body body) const {
    for (std::size_t segment = 0; segment < cut_.segments(); ++segment)
      for_others(world_, [&](int peer) { body(segment, peer); });
  }

  // A segment of the share that `rank` sums.
  Bytes part(int rank, std::size_t segment) const { return cut_.part(whole() ? 0 : rank, segment); }

  // Receive buffer for a peer's contribution to a segment of our share.
  Bytes arrival(std::size_t segment, int peer) const {
    const Bytes sum = part(world_.rank(), segment), first = part(world_.rank(), 0);
    const auto offset = static_cast<std::size_t>(sum.data() - first.data());
    return {scratch_->data() + place_of(world_, peer) * cut_.longest() + offset, sum.size()};
  }

  World& world_;
  const Call& call_;
  const Cut cut_;
  std::shared_ptr<Pool::Block> scratch_;
  Messages receives_, sends_;
};

// Each rank sends only to the next rank. First every share collects its sum on the way from its own
// rank around to the rank before it. Then the sums go around once more.
class Ring {
 public:
  Ring(World& world, const Job& job, Bytes data)
      : world_(world),
        call_(job.position.call),
        cut_(data, size_of(call_.dtype), world.size(), world.size()),
        receives_(world, job),
        sends_(world, job) {
    scratch_ = world.pool().take((count_of(world) - 1) * cut_.longest());
  }

  bool has_steps() const { return true; }

  // Posts all receives. A complete sum arrives after the share that it overwrites has gone around,
  // and so after we have sent it.
  void begin() {
    for (int step = 0; step < world_.size() - 1; ++step)
      for_segments(
          [&](std::size_t segment) { receives_.receive(arrival(step, segment), neighbour(-1)); });
    for (int step = 0; step < world_.size() - 1; ++step)
      for_segments([&](std::size_t segment) {
        receives_.receive(cut_.part(share(-step), segment), neighbour(-1));
      });
    for_segments([&](std::size_t segment) { send(share(0), segment); });
  }

  void finish() {
    for (int step = 0; step < world_.size() - 1; ++step)
      for_segments([&](std::size_t segment) {
        receives_.wait_next();
        const Bytes sum = cut_.part(share(-1 - step), segment);
        reduce_into(sum, arrival(step, segment), call_.dtype, call_.op);
        send(share(-1 - step), segment);
      });
    for (int step = 0; step < world_.size() - 1; ++step)
      for_segments([&](std::size_t segment) {
        receives_.wait_next();
        if (step < world_.size() - 2) send(share(-step), segment);
      });
    sends_.wait_all();
  }

 private:
  template <typename Body>
  void for_segments(Body body) const {
    for (std::size_t segment = 0; segment < cut_.segments(); ++segment) body(segment);
  }

  int neighbour(int distance) const {
    return (world_.rank() + distance + world_.size()) % world_.size();
  }
  int share(int distance) const { return neighbour(distance); }  // `distance` from our own

  void send(int share, std::size_t segment) {
    sends_.send(cut_.part(share, segment), neighbour(1));
  }

  // Receive buffer for the partial sum.
  Bytes arrival(int step, std::size_t segment) const {
    const Bytes to = cut_.part(share(-1 - step), segment), first = cut_.part(share(-1 - step), 0);
    const auto offset = static_cast<std::size_t>(to.data() - first.data());
    return {scratch_->data() + static_cast<std::size_t>(step) * cut_.longest() + offset, to.size()};
  }

  World& world_;
  const Call& call_;
  const Cut cut_;
  std::shared_ptr<Pool::Block> scratch_;
  Messages receives_, sends_;
};

}  // namespace thinwire::torch_engine
