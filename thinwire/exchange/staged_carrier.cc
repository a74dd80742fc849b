// staged_carrier.cc: device memory through pinned memory. A thread waits for the bytes and runs the
// host's collectives.
// SPDX-License-Identifier: Apache-2.0
#include <condition_variable>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "thinwire/core/error.h"
#include "thinwire/exchange/carrier.h"

namespace thinwire {
namespace {

// Collectives in flight at once, as in an Exchange.
constexpr std::size_t most_in_flight = 2;

class StagedCarrier final : public Carrier {
 public:
  StagedCarrier(Group& group, const OwnStream& stream) : group_(group), stream_(stream) {
    thread_ = std::thread([this] { run(); });
  }

  ~StagedCarrier() override {
    {
      const std::lock_guard lock(mutex_);
      closing_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  Pending send(Passage& passage, const Written& written, Stream) override {
    if (passage.leg().bytes == 0) return {};
    Box& box = boxes_.try_emplace(&passage, stream_, group_.size()).first->second;
    box.begin(passage);
    stream_.copy(box.staged.out().data(), passage.out().data(), passage.out().size());
    stream_.copy(box.lengths.data(), written.on_device,
                 passage.lengths(group_.size()) * sizeof(std::uint64_t));
    box.down.record(stream_.get());
    {
      const std::lock_guard lock(mutex_);
      box.arrived = false;
      queue_.push_back(&box);
    }
    changed_.notify_all();
    return Pending(std::make_unique<Arrival>(*this, box));
  }

  bool waits() const override { return true; }
  Traffic traffic() const override { return group_.traffic(); }

 private:
  // The pinned twin of a passage.
  struct Box {
    Box(const OwnStream& stream, int size)
        : ranks(size),
          staged(stream, place_beside(stream.device())),
          lengths(place_beside(stream.device()),
                  static_cast<std::size_t>(size) * sizeof(std::uint64_t)),
          down(stream.device()),
          pieces(static_cast<std::size_t>(size)),
          filled(pieces.size()) {}

    void begin(const Passage& of) {
      // Slots of another length lie elsewhere, where anything may be.
      if (staged.leg().bytes != of.leg().bytes) filled.assign(filled.size(), of.leg().bytes);
      device = &of;
      Leg leg = of.leg();
      leg.in_place = false;
      staged.begin(leg, ranks, nullptr);
    }

    int ranks;
    const Passage* device = nullptr;
    Passage staged;
    Buffer lengths;
    Event down;                       // the bytes are in pinned memory
    std::vector<std::size_t> pieces;  // lengths of a scatter
    std::vector<std::size_t> filled;  // of what the slots on the device hold at most, by rank
    bool arrived = true;              // guarded by mutex_
  };

  class Arrival final : public Pending::Work {
   public:
    Arrival(StagedCarrier& carrier, Box& box) : carrier_(carrier), box_(box) {}
    void wait() override { carrier_.receive(box_); }
    bool done() override {
      const std::lock_guard lock(carrier_.mutex_);
      return box_.arrived || carrier_.error_;
    }
    Cost cost() const override { return {}; }  // the group has counted it

   private:
    StagedCarrier& carrier_;
    Box& box_;
  };

  struct Flight {
    Box* box;
    Pending pending;
  };

  void receive(Box& box) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return box.arrived || error_; });
      if (!box.arrived) std::rethrow_exception(error_);
    }
    const Inbox inbox = box.staged.inbox();
    if (!box.device->has_slots())
      return stream_.copy(box.device->out().data(), inbox.data.data(), inbox.data.size());
    for (std::size_t r = 0; r < inbox.sizes.size(); ++r) {
      const std::size_t at = r * inbox.slot_bytes, size = inbox.sizes[r];
      std::byte* const slot = box.device->slots().data() + at;
      stream_.copy(slot, inbox.data.data() + at, size);
      // The rest of an earlier and longer message must not look like a part of this one.
      if (size < box.filled[r]) stream_.zero(slot + size, box.filled[r] - size);
      box.filled[r] = size;
    }
  }

  void run() {
    std::deque<Flight> flights;
    try {
      while (step(flights)) {
      }
    } catch (...) {
      const std::lock_guard lock(mutex_);
      error_ = std::current_exception();
    }
    changed_.notify_all();
  }

  // Starts the next collective, or ends the oldest. Returns false when there is no more to do.
  bool step(std::deque<Flight>& flights) {
    Box* next = nullptr;
    {
      std::unique_lock lock(mutex_);
      if (flights.empty()) changed_.wait(lock, [this] { return closing_ || !queue_.empty(); });
      if (closing_) return false;  // in mid-step: collectives under way end by themselves
      if (!queue_.empty() && flights.size() < most_in_flight) {
        next = queue_.front();
        queue_.pop_front();
      }
    }
    if (next) {
      flights.push_back({next, start(*next)});
      return true;
    }
    Flight flight = std::move(flights.front());
    flights.pop_front();
    flight.pending.wait();
    const std::lock_guard lock(mutex_);
    flight.box->arrived = true;
    changed_.notify_all();
    return true;
  }

  Pending start(Box& box) {
    box.down.wait();
    Written written;
    const std::size_t lengths = box.staged.lengths(box.ranks), most = box.staged.leg().bytes;
    for (std::size_t i = 0; i < lengths; ++i) {
      const std::uint64_t bytes = box.lengths.as<const std::uint64_t>()[i];
      if (bytes > most)
        fail("rank ", group_.rank(), ": a scheme has written ", bytes, " bytes, at most ", most,
             " were expected");
      box.pieces[i] = bytes;
    }
    written.bytes = box.pieces[0];
    written.pieces = box.pieces;
    return box.staged.start(group_, written, {});
  }

  Group& group_;
  const OwnStream& stream_;
  std::map<const Passage*, Box> boxes_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Box*> queue_;  // those whose bytes are on their way to pinned memory
  std::exception_ptr error_;
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<Carrier> make_carrier(Group& group, const OwnStream& stream) {
  return std::make_unique<StagedCarrier>(group, stream);
}

}  // namespace thinwire
