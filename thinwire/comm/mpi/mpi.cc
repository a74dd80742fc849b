// mpi.cc: collectives as non-blocking MPI calls. Our own loop waits for them, with a time limit.
//
// Reductions and broadcasts are MPI's own. MPI does not notice when ranks disagree on a length (it
// hangs, truncates or returns garbage), so a 16-byte check of the call runs beside each one, at the
// same time. Gathers are direct messages of the actual bytes: one step, with no exchange of sizes.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/comm/mpi/mpi.h"

#include <algorithm>
#include <exception>
#include <functional>
#include <thread>
#include <utility>

#include "thinwire/comm/cost.h"
#include "thinwire/comm/mpi/world.h"
#include "thinwire/comm/verbs.h"
#include "thinwire/core/error.h"
#include "thinwire/core/random.h"

namespace thinwire {
namespace {

using mpi::Position;
using mpi::World;
using Clock = std::chrono::steady_clock;

// One MPI request of a collective.
struct Part {
  MPI_Request request = MPI_REQUEST_NULL;
  int peer = -1;                // of a direct message
  std::size_t* size = nullptr;  // receives the number of bytes that arrived
  bool agreement = false;       // the check of the call itself
};

// The memory that MPI points to while a collective is in flight.
struct Transfer {
  std::vector<Part> parts;
  std::uint64_t agreement[2] = {0, ~std::uint64_t{0}};  // maximum of a hash and of its complement
};

// Equal on all ranks for equal calls.
std::uint64_t hash_of(const Position& position) {
  const Call& call = position.call;
  const std::uint64_t small =
      static_cast<std::uint64_t>(call.kind) | static_cast<std::uint64_t>(call.dtype) << 8 |
      static_cast<std::uint64_t>(call.op) << 16 | static_cast<std::uint64_t>(call.root) << 32;
  return random_at(random_at(small, call.bytes), position.sequence);
}

MPI_Datatype datatype_of(DType dtype) {
  switch (size_of(dtype)) {
    case 4:
      return MPI_UINT32_T;
    case 2:
      return MPI_UINT16_T;
    default:
      return MPI_UINT8_T;
  }
}

// The pause between polls of MPI. Spins at first, while an answer may come at any moment, then
// sleeps: with more ranks than cores, the rank that we wait for needs our core.
class Patience {
 public:
  void pause() {
    if (++looks_ < 200) return;
    std::this_thread::sleep_for(std::chrono::microseconds(looks_ < 2000 ? 20 : 50));
  }
  // True now and then, once the wait has become long.
  bool look_around() const { return looks_ % 256 == 255; }

 private:
  unsigned looks_ = 0;
};

class MpiWork final : public Pending::Work {
 public:
  // `cost` is called after completion, when the lengths are known.
  MpiWork(std::shared_ptr<World> world, const Position& position, std::function<Cost()> cost)
      : world_(std::move(world)), position_(position), price_(std::move(cost)) {}

  // MPI would go on writing to buffers that the caller may free after dropping a work
  // without wait(), so end it first. While an exception unwinds, wait only as long as
  // healthy ranks would need.
  ~MpiWork() override {
    if (finished_) return;
    const bool unwinding = std::uncaught_exceptions() > exceptions_;
    try {
      wait_for(unwinding ? world_->grace() : world_->options().timeout);
    } catch (const Error&) {  // the world remembers: the next call throws
    }
    if (!finished_) mpi::keep_for_ever(transfer_);
  }

  void wait() override { wait_for(world_->options().timeout); }

  bool done() override {
    if (finished_ || world_->failed()) return true;
    try {
      return progress();
    } catch (const Error&) {  // the world remembers: wait() throws it
      return true;
    }
  }

  Cost cost() const override { return cost_; }

  void send(const std::byte* from, std::size_t size, std::size_t slot, int peer) {
    each_piece(slot, [&](std::size_t at) {
      const std::size_t begin = std::min(at, size), count = std::min(size - begin, piece());
      const int code = MPI_Isend(from + begin, static_cast<int>(count), MPI_BYTE, peer,
                                 world_->tag(position_), world_->data(), next_request(peer));
      expect(code, transfer_->parts.back());
    });
  }

  void receive(std::byte* to, std::size_t slot, int peer, std::size_t& size) {
    size = 0;
    each_piece(slot, [&](std::size_t at) {
      const std::size_t count = std::min(slot - at, piece());
      const int code = MPI_Irecv(to + at, static_cast<int>(count), MPI_BYTE, peer,
                                 world_->tag(position_), world_->data(), next_request(peer));
      transfer_->parts.back().size = &size;
      expect(code, transfer_->parts.back());
    });
  }

  // An all-reduce of a number that is equal on all ranks if they agree. It ends on no rank before
  // it has begun on all, so it also serves as the barrier.
  void agree() {
    auto& agreement = transfer_->agreement;
    agreement[0] = hash_of(position_);
    agreement[1] = ~agreement[0];
    const int code = MPI_Iallreduce(MPI_IN_PLACE, agreement, 2, MPI_UINT64_T, MPI_MAX,
                                    world_->control(), next_request());
    transfer_->parts.back().agreement = true;
    expect(code, transfer_->parts.back());
  }

  void reduce(Bytes data) {
    const DType dtype = position_.call.dtype;
    for (std::size_t at = 0; at < data.size(); at += piece()) {
      const std::size_t count = std::min(data.size() - at, piece()) / size_of(dtype);
      const int code = MPI_Iallreduce(
          MPI_IN_PLACE, data.data() + at, static_cast<int>(count), datatype_of(dtype),
          world_->operation(dtype, position_.call.op), world_->data(), next_request());
      expect(code, transfer_->parts.back());
    }
  }

  void copy_from_root(Bytes data) {
    for (std::size_t at = 0; at < data.size(); at += piece()) {
      const std::size_t count = std::min(data.size() - at, piece());
      const int code = MPI_Ibcast(data.data() + at, static_cast<int>(count), MPI_BYTE,
                                  position_.call.root, world_->data(), next_request());
      expect(code, transfer_->parts.back());
    }
  }

 private:
  std::size_t piece() const { return world_->options().piece_bytes; }

  // Both sides divide a slot in the same way, whatever the actual length, so receives can be posted
  // before the length is known. Pieces beyond the actual length are empty.
  template <typename Body>
  void each_piece(std::size_t slot, Body body) const {
    std::size_t at = 0;
    do {
      body(at);
      at += piece();
    } while (at < slot);
  }

  MPI_Request* next_request(int peer = -1) {
    transfer_->parts.push_back({.peer = peer});
    return &transfer_->parts.back().request;
  }

  std::string here() const {
    return "rank " + std::to_string(world_->rank()) + ": " +
           label(position_.call, position_.sequence);
  }

  void expect(int code, const Part& part) {
    if (code == MPI_SUCCESS) return;
    int kind = MPI_SUCCESS;
    MPI_Error_class(code, &kind);
    const std::string peer = "rank " + std::to_string(part.peer);
    if (kind == MPI_ERR_TRUNCATE && part.peer >= 0)
      world_->refuse(position_, here() + ": " + peer + " sent more than a slot of " +
                                    std::to_string(position_.call.bytes) +
                                    " bytes; slot_bytes must be the same on all ranks");
    world_->give_up(position_, "failed in MPI (" + mpi::text_of(code) + ")");
  }

  // Lets MPI work; true when all requests are done. Throws when something is wrong.
  bool progress() {
    auto& parts = transfer_->parts;
    while (!parts.empty()) {
      bool moved = false;
      for (std::size_t i = 0; i < parts.size();) {
        if (test(parts[i])) {
          parts[i] = parts.back();
          parts.pop_back();
          moved = true;
        } else {
          ++i;
        }
      }
      if (!moved) return false;
    }
    finish();
    return true;
  }

  bool test(Part& part) {
    int done = 0;
    MPI_Status status;
    expect(MPI_Test(&part.request, &done, &status), part);
    // Throws at once: if ranks disagree, the data may never arrive.
    if (done && part.agreement && transfer_->agreement[0] != ~transfer_->agreement[1])
      world_->disagree(position_);
    if (done && part.size) {
      int count = 0;
      MPI_Get_count(&status, MPI_BYTE, &count);
      *part.size += static_cast<std::size_t>(count);
    }
    return done;
  }

  void finish() {
    if (std::exchange(finished_, true)) return;
    cost_ = price_();
    add(world_->traffic, cost_);
  }

  // Ranks whose direct message has not arrived.
  std::vector<int> owing() const {
    std::vector<int> ranks;
    for (const Part& part : transfer_->parts)
      if (part.size) ranks.push_back(part.peer);
    return ranks;
  }

  void wait_for(std::chrono::milliseconds limit) {
    if (finished_) return;
    world_->throw_if_failed();
    const auto deadline = Clock::now() + limit;
    for (Patience patience; !progress(); patience.pause()) {
      if (Clock::now() >= deadline)
        world_->give_up(position_, "timed out after " + std::to_string(limit.count()) + " ms",
                        owing());
      if (!patience.look_around()) continue;
      const int deserter = world_->deserter();
      if (deserter >= 0)
        world_->give_up(position_, "broken off (rank " + std::to_string(deserter) + " gave up)",
                        owing());
    }
  }

  std::shared_ptr<World> world_;
  const Position position_;
  const std::function<Cost()> price_;
  Cost cost_;
  std::shared_ptr<Transfer> transfer_ = std::make_shared<Transfer>();
  const int exceptions_ = std::uncaught_exceptions();
  bool finished_ = false;
};

class MpiGroup final : public EngineGroup {
 public:
  explicit MpiGroup(const GroupOptions& options) : world_(std::make_shared<World>(options)) {}

  int rank() const override { return world_->rank(); }
  int size() const override { return world_->size(); }
  std::string name() const override { return "mpi"; }
  Traffic traffic() const override { return world_->traffic; }

 private:
  Pending start(const Call& call, const Operands& operands) override {
    const Position position = world_->issue(call);
    try {
      check(rank(), size(), call, operands);
    } catch (const Error& error) {  // others must not wait for a call that never comes
      world_->refuse(position, error.what());
    }
    const auto cost = [=, me = rank(), n = size()] { return mpi_cost(call, operands, me, n); };
    auto work = std::make_unique<MpiWork>(world_, position, cost);
    if (call.kind == Kind::all_gather || call.kind == Kind::all_to_all)
      send_pieces(*work, call, operands);
    else
      work->agree();
    if (call.kind == Kind::all_reduce) work->reduce(operands.data);
    if (call.kind == Kind::broadcast) work->copy_from_root(operands.data);
    return Pending(std::move(work));
  }

  void send_pieces(MpiWork& work, const Call& call, const Operands& operands) const {
    for_others([&](int peer) {
      const auto r = static_cast<std::size_t>(peer);
      work.receive(operands.data.data() + r * call.bytes, call.bytes, peer, operands.sizes[r]);
    });
    for_others([&](int peer) {
      const ConstBytes piece = operands.piece(call, peer);
      work.send(piece.data(), piece.size(), call.bytes, peer);
    });
    operands.keep_own(call, rank());
  }

  // Visits the other ranks, starting after our own, so that not all ranks send to rank 0 first.
  template <typename Body>
  void for_others(Body body) const {
    for (int step = 1; step < size(); ++step) body((rank() + step) % size());
  }

  std::shared_ptr<World> world_;
};

}  // namespace

std::unique_ptr<Group> make_mpi_group(const GroupOptions& options) {
  return std::make_unique<MpiGroup>(options);
}

}  // namespace thinwire
