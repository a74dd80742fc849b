// staged_carrier.cc: device memory through pinned memory. A thread waits for the bytes and runs the
// host's collectives.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
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

using Clock = std::chrono::steady_clock;

// Collectives in flight at once, as in an Exchange.
constexpr std::size_t most_in_flight = 2;

// The pauses between looks of a patient carrier: a small part of the time that the oldest
// collective has taken already. While somebody waits, the shortest.
constexpr auto shortest_pause = std::chrono::microseconds(200);
constexpr auto longest_pause = std::chrono::microseconds(10'000);
constexpr int pause_part = 16;

class StagedCarrier final : public Carrier {
 public:
  StagedCarrier(Group& group, const OwnStream& stream, bool patient)
      : group_(group), stream_(stream), patient_(patient) {
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

  std::unique_lock<std::mutex> hold() override {
    {
      std::unique_lock lock(mutex_);
      await(lock, [this] { return queue_.empty() || error_; });
      if (error_) std::rethrow_exception(error_);
    }
    return std::unique_lock(group_mutex_);
  }

 private:
  // The pinned twin of a passage.
  struct Box {
    Box(const OwnStream& stream, int size)
        : ranks(size),
          staged(stream, place_beside(stream.device())),
          lengths(place_beside(stream.device()),
                  static_cast<std::size_t>(size) * sizeof(std::uint64_t), stream.device()),
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
    Clock::time_point begin;
  };

  template <typename Ready>
  void await(std::unique_lock<std::mutex>& lock, Ready ready) {
    ++waiting_;
    changed_.notify_all();
    changed_.wait(lock, ready);
    --waiting_;
  }

  void receive(Box& box) {
    {
      std::unique_lock lock(mutex_);
      await(lock, [&] { return box.arrived || error_; });
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
      if (!queue_.empty() && may_start(flights)) next = queue_.front();
    }
    if (next) {
      flights.push_back({next, start(*next), Clock::now()});
      const std::lock_guard lock(mutex_);
      queue_.pop_front();
      changed_.notify_all();
      return true;
    }
    if (patient_ && !has_ended(flights)) {
      pause(flights);
      return true;
    }
    Flight flight = std::move(flights.front());
    flights.pop_front();
    {
      const std::lock_guard group(group_mutex_);
      flight.pending.wait();
    }
    const std::lock_guard lock(mutex_);
    flight.box->arrived = true;
    changed_.notify_all();
    return true;
  }

  bool may_start(const std::deque<Flight>& flights) const {
    return patient_ ? queue_.front()->down.done() : flights.size() < most_in_flight;
  }

  bool has_ended(std::deque<Flight>& flights) {
    const std::lock_guard group(group_mutex_);
    return !flights.empty() && flights.front().pending.done();
  }

  void pause(const std::deque<Flight>& flights) {
    std::unique_lock lock(mutex_);
    if (closing_) return;
    const bool hurry = waiting_ > 0 || !queue_.empty() || flights.empty();
    const Clock::duration pause =
        hurry ? shortest_pause
              : std::clamp<Clock::duration>((Clock::now() - flights.front().begin) / pause_part,
                                            shortest_pause, longest_pause);
    changed_.wait_for(lock, pause);
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
    const std::lock_guard group(group_mutex_);
    return box.staged.start(group_, written, {});
  }

  Group& group_;
  const OwnStream& stream_;
  const bool patient_;
  std::map<const Passage*, Box> boxes_;

  std::mutex group_mutex_;  // locked before mutex_ where both are needed
  std::mutex mutex_;
  std::condition_variable changed_;
  int waiting_ = 0;         // callers that wait for the thread
  std::deque<Box*> queue_;  // those whose bytes are on their way to pinned memory
  std::exception_ptr error_;
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<Carrier> make_carrier(Group& group, const OwnStream& stream) {
  return std::make_unique<StagedCarrier>(group, stream, false);
}

std::unique_ptr<Carrier> make_patient_carrier(Group& group, const OwnStream& stream) {
  return std::make_unique<StagedCarrier>(group, stream, true);
}

}  // namespace thinwire
