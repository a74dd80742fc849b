// c10d.cc: collectives as messages between pairs of ranks over a c10d backend.
//
// Why not the backend's own collectives: Gloo gathers whole slots in a ring of N - 1 steps, while
// its receives take any message up to their length, so that direct messages carry the actual bytes
// in one step (1 MB from each of 4 ranks on loopback: 2.6 ms against 6.5 ms). Gloo's reductions
// lose a NaN in max and wrap i8; and it ends the process when ranks disagree on a length. Here
// arithmetic is reduce.h's, as in every engine, and ranks that disagree wait, and are told.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/comm/c10d/c10d.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

#include "thinwire/comm/c10d/world.h"
#include "thinwire/comm/reduce.h"
#include "thinwire/core/error.h"

namespace thinwire {
namespace {

using torch_engine::Job;
using torch_engine::Lost;
using torch_engine::Meeting;
using torch_engine::Pool;
using torch_engine::World;

class C10dWork final : public Pending::Work {
 public:
  C10dWork(std::shared_ptr<World> world, std::shared_ptr<Job> job)
      : world_(std::move(world)), job_(std::move(job)) {}

  // Dropped without wait(): buffers may go now, so end it first; while an exception passes, only as
  // long as healthy ranks would need.
  ~C10dWork() override {
    const bool unwinding = std::uncaught_exceptions() > exceptions_;
    try {
      if (unwinding && !world_->wait_for(*job_, world_->grace()))
        world_->break_off("rank " + std::to_string(world_->rank()) + ": left by an exception");
      wait();
    } catch (const Error&) {  // the world remembers: the next call throws
    }
  }

  // The messages have their time limits; so this ends.
  void wait() override {
    while (!world_->wait_for(*job_, world_->options().timeout)) continue;
  }

  bool done() override { return world_->is_done(*job_); }

 private:
  std::shared_ptr<World> world_;
  std::shared_ptr<Job> job_;
  const int exceptions_ = std::uncaught_exceptions();
};

// Messages of one collective, waited for in the order they were posted in. Both sides know of an
// empty one; it need not travel.
class Messages {
 public:
  Messages(World& world, const Job& job) : world_(world), job_(job) {}

  void send(ConstBytes from, int peer) {
    all_.push_back({from.empty() ? World::Message() : world_.send(from, peer, job_), peer});
  }
  void receive(Bytes to, int peer) {
    all_.push_back({to.empty() ? World::Message() : world_.receive(to, peer, job_), peer});
  }
  void wait_next() {
    const auto& [message, peer] = all_[next_++];
    if (message) world_.wait(message, peer);
  }
  void wait_all() {
    while (next_ < all_.size()) wait_next();
  }

 private:
  World& world_;
  const Job& job_;
  std::vector<std::pair<World::Message, int>> all_;
  std::size_t next_ = 0;
};

// A ring: N - 1 steps that sum chunks on their way round, N - 1 that carry the sums on. Each chunk
// is summed along one path and copied from there, so all ranks get the same bits. Chunks travel in
// segments: while one is being added, the next is on the wire.
class Ring {
 public:
  Ring(World& world, const Job& job, Bytes data)
      : world_(world), job_(job), data_(data), receives_(world, job), sends_(world, job) {
    const std::size_t chunk = end_of(0);
    segments_ = std::clamp<std::size_t>(chunk / kSegment, 1, kMostSegments);
    stride_ = chunk / segments_ + size_of(job.position.call.dtype);
    scratch_ = world.pool().take(segments_ * stride_);
  }

  void begin() {
    if (data_.empty()) return;
    for (std::size_t segment = 0; segment < segments_; ++segment) {
      receive(0, segment);
      send(0, segment);
    }
  }

  void finish() {
    if (data_.empty()) return;
    const std::size_t steps = 2 * (count() - 1);
    for (std::size_t step = 0; step < steps; ++step) {
      for (std::size_t segment = 0; segment < segments_; ++segment) {
        receives_.wait_next();
        const Bytes sum = part(step + 1, segment);
        if (sums(step))
          reduce_into(sum, scratch(segment, sum.size()), job_.position.call.dtype, op());
        if (step + 1 == steps) continue;
        receive(step + 1, segment);
        send(step + 1, segment);
      }
    }
    sends_.wait_all();
  }

 private:
  static constexpr std::size_t kSegment = std::size_t{1} << 16;
  static constexpr std::size_t kMostSegments = 4;

  ReduceOp op() const { return job_.position.call.op; }
  std::size_t count() const { return static_cast<std::size_t>(world_.size()); }
  bool sums(std::size_t step) const { return step + 1 < count(); }

  // Whole elements; the first chunks are the longest.
  std::size_t end_of(std::size_t chunk) const {
    const std::size_t size = size_of(job_.position.call.dtype), elements = data_.size() / size;
    const std::size_t more = elements % count();
    return size * ((chunk + 1) * (elements / count()) + std::min(chunk + 1, more));
  }

  // The segment of the chunk that this rank sends in this step (and received in the one before).
  Bytes part(std::size_t step, std::size_t segment) const {
    const auto me = static_cast<std::size_t>(world_.rank());
    const std::size_t chunk = (me + 2 * count() - step) % count();
    const std::size_t size = size_of(job_.position.call.dtype);
    const std::size_t start = chunk == 0 ? 0 : end_of(chunk - 1);
    const std::size_t elements = (end_of(chunk) - start) / size;
    const std::size_t from = elements * segment / segments_,
                      to = elements * (segment + 1) / segments_;
    return data_.subspan(start + from * size, (to - from) * size);
  }

  // Where what is to be added to a segment arrives.
  Bytes scratch(std::size_t segment, std::size_t bytes) const {
    return {scratch_->data() + segment * stride_, bytes};
  }

  void receive(std::size_t step, std::size_t segment) {
    const int from = (world_.rank() + world_.size() - 1) % world_.size();
    const Bytes to = part(step + 1, segment);
    receives_.receive(sums(step) ? scratch(segment, to.size()) : to, from);
  }

  void send(std::size_t step, std::size_t segment) {
    sends_.send(part(step, segment), (world_.rank() + 1) % world_.size());
  }

  World& world_;
  const Job& job_;
  Bytes data_;
  std::size_t segments_ = 1;
  std::size_t stride_ = 0;
  std::shared_ptr<Pool::Block> scratch_;
  Messages receives_, sends_;
};

// A binomial tree, as traffic_of() counts it. Places count from the root.
class Tree {
 public:
  Tree(World& world, const Job& job, Bytes data)
      : world_(world), data_(data), root_(job.position.call.root), messages_(world, job) {
    place_ = (world.rank() - root_ + world.size()) % world.size();
  }

  void begin() {
    if (place_ == 0)
      send_on();
    else
      messages_.receive(data_, rank_at(place_ & (place_ - 1)));
  }

  void finish() {
    messages_.wait_all();
    if (place_ != 0) send_on();
    messages_.wait_all();
  }

 private:
  int rank_at(int place) const { return (place + root_) % world_.size(); }

  // To the child with the most descendants first.
  void send_on() {
    int step = 1;
    while (step < world_.size() && (place_ & step) == 0) step *= 2;
    for (step /= 2; step > 0; step /= 2)
      if (place_ + step < world_.size()) messages_.send(data_, rank_at(place_ + step));
  }

  World& world_;
  Bytes data_;
  int root_;
  int place_ = 0;
  Messages messages_;
};

// In round k every rank hears from the one 2^k before it: after the last, from all.
class Rounds {
 public:
  Rounds(World& world, const Job& job) : world_(world), sends_(world, job), receives_(world, job) {}

  void begin() {
    for (int step = 1; step < world_.size(); step *= 2)
      receives_.receive(Bytes(&heard_, 1), (world_.rank() + world_.size() - step) % world_.size());
    send(1);
  }

  void finish() {
    for (int step = 1; step < world_.size(); step *= 2) {
      receives_.wait_next();
      if (2 * step < world_.size()) send(2 * step);
    }
    sends_.wait_all();
  }

 private:
  void send(int step) {
    sends_.send(ConstBytes(&token_, 1), (world_.rank() + step) % world_.size());
  }

  World& world_;
  const std::byte token_{1};
  std::byte heard_{};
  Messages sends_, receives_;
};

// Every rank sends every other one piece, led by its length: a receive does not tell it. Those 8
// bytes are no more counted than the headers of the layers below.
class Pieces {
 public:
  using Length = std::uint64_t;

  Pieces(World& world, Job& job, Bytes slots, std::span<std::size_t> sizes)
      : world_(world),
        job_(job),
        slots_(slots),
        sizes_(sizes),
        sends_(world, job),
        receives_(world, job) {}

  void begin_receives() {
    const std::size_t stride = sizeof(Length) + slot();
    incoming_ = world_.pool().take(stride * (sizes_.size() - 1));
    for_others([&](int peer) { receives_.receive(arrival(peer), peer); });
  }

  // The same for all peers: one copy of it.
  void begin_sends(ConstBytes piece) {
    const Bytes message = packed(piece);
    for_others([&](int peer) { send(message, piece, peer); });
  }

  void begin_send(ConstBytes piece, int peer) { send(packed(piece), piece, peer); }

  template <typename Body>
  void for_others(Body body) const {
    for (int step = 1; step < world_.size(); ++step) body((world_.rank() + step) % world_.size());
  }

  void keep_own(ConstBytes own) {
    const auto me = static_cast<std::size_t>(world_.rank());
    std::ranges::copy(own, slots_.subspan(me * slot()).begin());
    sizes_[me] = own.size();
  }

  void finish() {
    for_others([&](int peer) {
      receives_.wait_next();
      unpack(arrival(peer), peer);
    });
    sends_.wait_all();
  }

 private:
  std::size_t slot() const { return job_.position.call.bytes; }

  Bytes arrival(int peer) const {
    const int place = (peer - world_.rank() + world_.size()) % world_.size() - 1;
    const std::size_t stride = sizeof(Length) + slot();
    return {incoming_->data() + static_cast<std::size_t>(place) * stride, stride};
  }

  Bytes packed(ConstBytes piece) {
    outgoing_.push_back(world_.pool().take(sizeof(Length) + piece.size()));
    const Length length = piece.size();
    std::memcpy(outgoing_.back()->data(), &length, sizeof length);
    std::ranges::copy(piece, outgoing_.back()->data() + sizeof length);
    return {outgoing_.back()->data(), sizeof length + piece.size()};
  }

  void send(Bytes message, ConstBytes piece, int peer) {
    sends_.send(message, peer);
    job_.traffic.sent += piece.size();
  }

  void unpack(ConstBytes message, int peer) {
    Length length = 0;
    std::memcpy(&length, message.data(), sizeof length);
    if (length > slot())
      throw Lost{peer, "rank " + std::to_string(peer) + " announces " + std::to_string(length) +
                           " bytes for a slot of " + std::to_string(slot())};
    const auto r = static_cast<std::size_t>(peer);
    std::ranges::copy(message.subspan(sizeof length, length), slots_.data() + r * slot());
    sizes_[r] = length;
    job_.traffic.received += length;
  }

  World& world_;
  Job& job_;
  Bytes slots_;
  std::span<std::size_t> sizes_;
  std::shared_ptr<Pool::Block> incoming_;
  std::vector<std::shared_ptr<Pool::Block>> outgoing_;
  Messages sends_, receives_;
};

class C10dGroup final : public Group {
 public:
  explicit C10dGroup(std::shared_ptr<World> world) : world_(std::move(world)) {}

  int rank() const override { return world_->rank(); }
  int size() const override { return world_->size(); }
  std::string name() const override { return "c10d"; }
  Traffic traffic() const override { return world_->traffic(); }

  Pending all_reduce(Bytes data, DType dtype, ReduceOp op, Stream) override {
    const Call call{.kind = Kind::all_reduce, .bytes = data.size(), .dtype = dtype, .op = op};
    const auto job = issue(call, [&] { check_all_reduce(rank(), call); });
    return launch<Ring>(job, data);
  }

  Pending all_gather(ConstBytes mine, std::size_t slot_bytes, Bytes slots,
                     std::span<std::size_t> sizes, Stream) override {
    const Call call{.kind = Kind::all_gather, .bytes = slot_bytes};
    const auto job = issue(
        call, [&] { check_slots(rank(), size(), call, mine.size(), slots.size(), sizes.size()); });
    const auto pieces = std::make_shared<Pieces>(*world_, *job, slots, sizes);
    pieces->keep_own(mine);
    return launch(job, pieces, [&] {
      pieces->begin_receives();
      pieces->begin_sends(mine);
    });
  }

  Pending all_to_all(ConstBytes mine, std::span<const std::size_t> mine_sizes,
                     std::size_t slot_bytes, Bytes slots, std::span<std::size_t> sizes,
                     Stream) override {
    const Call call{.kind = Kind::all_to_all, .bytes = slot_bytes};
    const auto job = issue(call, [&] {
      check_pieces(rank(), size(), call, mine.size(), mine_sizes);
      check_slots(rank(), size(), call, 0, slots.size(), sizes.size());
    });
    const auto piece = [&](int peer) {
      const auto r = static_cast<std::size_t>(peer);
      return mine.subspan(r * slot_bytes, mine_sizes[r]);
    };
    const auto pieces = std::make_shared<Pieces>(*world_, *job, slots, sizes);
    pieces->keep_own(piece(rank()));
    return launch(job, pieces, [&] {
      pieces->begin_receives();
      pieces->for_others([&](int peer) { pieces->begin_send(piece(peer), peer); });
    });
  }

  Pending broadcast(Bytes data, int root, Stream) override {
    const Call call{.kind = Kind::broadcast, .bytes = data.size(), .root = root};
    const auto job = issue(call, [&] { check_broadcast(rank(), size(), call); });
    return launch<Tree>(job, data);
  }

  Pending barrier() override {
    return launch<Rounds>(issue({.kind = Kind::barrier}, [] {}));
  }

 private:
  template <typename Check>
  std::shared_ptr<Job> issue(const Call& call, Check check) {
    auto job = world_->issue(call);
    try {
      check();
    } catch (const Error& error) {  // others must not wait for a call that never comes
      world_->refuse(job->position, error.what());
    }
    return job;
  }

  // The pattern lives as long as the job has to be finished.
  template <typename Pattern, typename Begin>
  Pending launch(const std::shared_ptr<Job>& job, std::shared_ptr<Pattern> pattern, Begin begin) {
    if (size() > 1) job->finish = [pattern] { pattern->finish(); };
    world_->launch(job, begin);
    return Pending(std::make_unique<C10dWork>(world_, job));
  }

  template <typename Pattern, typename... Arguments>
  Pending launch(const std::shared_ptr<Job>& job, const Arguments&... arguments) {
    const auto pattern = std::make_shared<Pattern>(*world_, *job, arguments...);
    return launch(job, pattern, [&] { pattern->begin(); });
  }

  std::shared_ptr<World> world_;
};

}  // namespace

std::unique_ptr<Group> torch_engine::make_group(c10::intrusive_ptr<c10d::Backend> backend,
                                                const GroupOptions& options, Meeting meeting) {
  auto world = std::make_shared<World>(std::move(backend), options, std::move(meeting));
  return std::make_unique<C10dGroup>(std::move(world));
}

std::unique_ptr<Group> make_c10d_group(c10::intrusive_ptr<c10d::Backend> backend,
                                       const GroupOptions& options) {
  if (!backend) fail("c10d group: expected a backend, got none");
  const std::string name = backend->getBackendName();
  if (name != "gloo" && name != "mpi")
    fail(
        "c10d group: expected a backend whose receives take shorter messages too (gloo, mpi), got ",
        name);
  return torch_engine::make_group(std::move(backend), options, {});
}

}  // namespace thinwire
