// host_carrier.cc: a thread that waits for bytes in pinned memory and runs the host's collectives.
// SPDX-License-Identifier: Apache-2.0
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "thinwire/core/error.h"
#include "thinwire/exchange/carrier.h"
#include "thinwire/exchange/passage.h"

namespace thinwire {
namespace {

// Collectives in flight at once, as in an Exchange.
constexpr std::size_t most_in_flight = 2;

class HostCarrier final : public Carrier {
 public:
  HostCarrier(Group& group, const OwnStream& stream, std::size_t buckets)
      : group_(group), stream_(stream) {
    for (std::size_t i = 0; i < buckets; ++i) boxes_.emplace_back(stream.device(), group.size());
    thread_ = std::thread([this] { run(); });
  }

  ~HostCarrier() override {
    {
      const std::lock_guard lock(mutex_);
      closing_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  void send(std::size_t bucket, const Cargo& cargo) override {
    Box& box = boxes_[bucket];
    box.cargo = cargo;
    if (cargo.leg.bytes == 0) return;
    if (!box.fits()) {
      stream_.wait();  // for copies out of the memory that goes
      box.grow();
    }
    box.turn_to(cargo.leg.bytes);
    stream_.copy(box.out.data(), cargo.out.data(), cargo.leg.bytes);
    if (box.gathers()) stream_.copy(box.written.data(), cargo.written, sizeof(std::uint64_t));
    box.down.record(stream_.get());
    {
      const std::lock_guard lock(mutex_);
      box.arrived = false;
      queue_.push_back(bucket);
    }
    changed_.notify_all();
  }

  void receive(std::size_t bucket) override {
    Box& box = boxes_[bucket];
    if (box.cargo.leg.bytes == 0) return;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return box.arrived || error_; });
      if (!box.arrived) std::rethrow_exception(error_);
    }
    const Cargo& cargo = box.cargo;
    if (!box.gathers()) return stream_.copy(cargo.out.data(), box.out.data(), cargo.leg.bytes);
    for (std::size_t r = 0; r < box.sizes.size(); ++r) {
      const std::size_t at = r * cargo.leg.bytes, size = box.sizes[r];
      stream_.copy(cargo.slots.data() + at, box.slots.data() + at, size);
      // The rest of an earlier and longer message must not look like a part of this one.
      if (size < box.filled[r]) stream_.zero(cargo.slots.data() + at + size, box.filled[r] - size);
      box.filled[r] = size;
    }
  }

  Traffic traffic() const override { return group_.traffic(); }

 private:
  // The pinned memory of one bucket.
  struct Box {
    Box(Device device, int ranks)
        : place(place_beside(device)),
          written(place, sizeof(std::uint64_t)),
          down(device),
          sizes(static_cast<std::size_t>(ranks)),
          filled(sizes.size()) {}

    bool gathers() const { return cargo.leg.reduction == Reduction::gather; }

    std::size_t all() const { return gathers() ? sizes.size() * cargo.leg.bytes : 0; }
    bool fits() const { return out.size() >= cargo.leg.bytes && slots.size() >= all(); }

    // For a bucket whose messages have become longer.
    void grow() {
      out = Buffer(place, cargo.leg.bytes);
      slots = Buffer(place, all());
    }

    // Slots of another length lie elsewhere, where anything may be.
    void turn_to(std::size_t bytes) {
      if (slot_bytes != bytes) filled.assign(filled.size(), bytes);
      slot_bytes = bytes;
    }

    Place place;
    Cargo cargo{};
    Buffer out{}, slots{}, written;
    Event down;                       // `out` is there
    std::vector<std::size_t> sizes;   // of what arrived, by rank
    std::vector<std::size_t> filled;  // of what the slots on the device hold at most
    std::size_t slot_bytes = 0;
    bool arrived = true;  // guarded by mutex_
  };

  struct Flight {
    std::size_t bucket;
    Pending pending;
  };

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
    bool starts = false;
    std::size_t next = 0;
    {
      std::unique_lock lock(mutex_);
      if (flights.empty()) changed_.wait(lock, [this] { return closing_ || !queue_.empty(); });
      if (closing_) return false;  // in mid-step: collectives under way end by themselves
      starts = !queue_.empty() && flights.size() < most_in_flight;
      if (starts) {
        next = queue_.front();
        queue_.pop_front();
      }
    }
    if (starts) {
      flights.push_back({next, start(boxes_[next])});
      return true;
    }
    Flight flight = std::move(flights.front());
    flights.pop_front();
    flight.pending.wait();
    const std::lock_guard lock(mutex_);
    boxes_[flight.bucket].arrived = true;
    changed_.notify_all();
    return true;
  }

  Pending start(Box& box) {
    box.down.wait();
    const Leg& leg = box.cargo.leg;
    const Bytes out{box.out.data(), leg.bytes};
    if (!box.gathers()) return group_.all_reduce(out, leg.dtype, reduce_op(leg), {});
    const auto bytes = *box.written.as<const std::uint64_t>();
    if (bytes > leg.bytes)
      fail("rank ", group_.rank(), ": a scheme has written ", bytes, " bytes, at most ", leg.bytes,
           " were expected");
    const Bytes slots{box.slots.data(), box.sizes.size() * leg.bytes};
    return group_.all_gather(out.first(bytes), leg.bytes, slots, box.sizes, {});
  }

  Group& group_;
  const OwnStream& stream_;
  std::deque<Box> boxes_;  // does not move them

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::size_t> queue_;  // buckets whose bytes are on their way to pinned memory
  std::exception_ptr error_;
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<Carrier> make_carrier(Group& group, const OwnStream& stream, std::size_t buckets) {
  return std::make_unique<HostCarrier>(group, stream, buckets);
}

}  // namespace thinwire
