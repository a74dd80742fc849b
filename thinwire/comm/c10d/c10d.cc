// c10d.cc: collectives as messages between pairs of ranks over a c10d backend.
//
// Why not the backend's own collectives: Gloo gathers whole slots in a ring of N - 1 steps, while
// its receives take any message up to their length, so that direct messages carry the actual bytes
// in one step (1 MB from each of 4 ranks on loopback: 2.6 ms against 6.5 ms). Gloo's reductions
// lose a NaN in max and wrap i8; and it ends the process when ranks disagree on a length. Here
// arithmetic is reduce.h's, as in every engine, and ranks that disagree wait, and are told. Nor are
// they slower: a short all-reduce is one step between two ranks and two among more, where Gloo's
// ring takes 2 (N - 1), and whoever waits does the work, with no thread in between.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/comm/c10d/c10d.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "thinwire/comm/c10d/base.h"
#include "thinwire/comm/c10d/messages.h"
#include "thinwire/comm/c10d/sums.h"
#include "thinwire/comm/cost.h"
#include "thinwire/core/error.h"

namespace thinwire {
namespace {

using torch_engine::BaseGroup;
using torch_engine::for_others;
using torch_engine::Job;
using torch_engine::Lost;
using torch_engine::Messages;
using torch_engine::place_of;
using torch_engine::Pool;
using torch_engine::Ring;
using torch_engine::Shares;
using torch_engine::World;

// A binomial tree. Places count from the root.
class Tree {
 public:
  Tree(World& world, Job& job, Bytes data)
      : world_(world), data_(data), root_(job.position.call.root), messages_(world, job) {
    job.cost = tree_cost(data.size(), root_, world.rank(), world.size());
    place_ = (world.rank() - root_ + world.size()) % world.size();
  }

  bool has_steps() const { return place_ != 0 && place_ % 2 == 0; }  // an odd place has no children

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
  Rounds(World& world, Job& job) : world_(world), sends_(world, job), receives_(world, job) {
    job.cost = rounds_cost(world.size());
  }

  bool has_steps() const { return world_.size() > 2; }

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

  // `mine_sizes` is of an all-to-all only: in a gather all get the same.
  Pieces(World& world, Job& job, std::span<const std::size_t> mine_sizes, Bytes slots,
         std::span<std::size_t> sizes)
      : world_(world),
        job_(job),
        mine_sizes_(mine_sizes),
        slots_(slots),
        sizes_(sizes),
        sends_(world, job),
        receives_(world, job) {}

  bool has_steps() const { return false; }

  void begin_receives() {
    const std::size_t stride = sizeof(Length) + slot();
    incoming_ = world_.pool().take(stride * (sizes_.size() - 1));
    for_others(world_, [&](int peer) { receives_.receive(arrival(peer), peer); });
  }

  // The same for all peers: one copy of it.
  void begin_sends(ConstBytes piece) {
    const Bytes message = packed(piece);
    for_others(world_, [&](int peer) { sends_.send(message, peer); });
  }

  void begin_send(ConstBytes piece, int peer) { sends_.send(packed(piece), peer); }

  void keep_own(ConstBytes own) {
    const auto me = static_cast<std::size_t>(world_.rank());
    std::ranges::copy(own, slots_.subspan(me * slot()).begin());
    sizes_[me] = own.size();
  }

  void finish() {
    for_others(world_, [&](int peer) {
      receives_.wait_next();
      unpack(arrival(peer), peer);
    });
    sends_.wait_all();
    job_.cost = mine_sizes_.empty() ? gather_cost(sizes_, world_.rank())
                                    : pieces_cost(mine_sizes_, sizes_, world_.rank());
  }

 private:
  std::size_t slot() const { return job_.position.call.bytes; }

  Bytes arrival(int peer) const {
    const std::size_t stride = sizeof(Length) + slot();
    return {incoming_->data() + place_of(world_, peer) * stride, stride};
  }

  Bytes packed(ConstBytes piece) {
    outgoing_.push_back(world_.pool().take(sizeof(Length) + piece.size()));
    const Length length = piece.size();
    std::memcpy(outgoing_.back()->data(), &length, sizeof length);
    std::ranges::copy(piece, outgoing_.back()->data() + sizeof length);
    return {outgoing_.back()->data(), sizeof length + piece.size()};
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
  }

  World& world_;
  Job& job_;
  std::span<const std::size_t> mine_sizes_;
  Bytes slots_;
  std::span<std::size_t> sizes_;
  std::shared_ptr<Pool::Block> incoming_;
  std::vector<std::shared_ptr<Pool::Block>> outgoing_;
  Messages sends_, receives_;
};

class C10dGroup final : public BaseGroup {
 public:
  using BaseGroup::BaseGroup;

  std::string name() const override { return "c10d"; }

  Pending all_reduce(Bytes data, DType dtype, ReduceOp op, Stream) override {
    const Call call{.kind = Kind::all_reduce, .bytes = data.size(), .dtype = dtype, .op = op};
    const auto job = issue(call, [&] { check_all_reduce(rank(), call); });
    if (takes_ring(data.size(), size())) return launch<Ring>(job, data);
    return launch<Shares>(job, data);
  }

  Pending all_gather(ConstBytes mine, std::size_t slot_bytes, Bytes slots,
                     std::span<std::size_t> sizes, Stream) override {
    const Call call{.kind = Kind::all_gather, .bytes = slot_bytes};
    const auto job = issue(
        call, [&] { check_slots(rank(), size(), call, mine.size(), slots.size(), sizes.size()); });
    const auto pieces =
        std::make_shared<Pieces>(*world_, *job, std::span<const std::size_t>(), slots, sizes);
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
    const auto pieces = std::make_shared<Pieces>(*world_, *job, mine_sizes, slots, sizes);
    pieces->keep_own(piece(rank()));
    return launch(job, pieces, [&] {
      pieces->begin_receives();
      for_others(*world_, [&](int peer) { pieces->begin_send(piece(peer), peer); });
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
