// c10d.cc: collectives as messages between pairs of ranks over a c10d backend.
//
// Why not the backend's own collectives? Gloo gathers whole slots in a ring of N - 1 steps. Its
// receives take any message up to their length, so direct messages carry only the actual bytes, in
// one step (1 MB from each of 4 ranks on loopback: 2.6 ms instead of 6.5 ms). Gloo's reductions
// lose a NaN in max and wrap i8, and Gloo ends the process when ranks disagree on a length. Here
// the arithmetic is that of reduce.h, as in every engine, and ranks that disagree get an error. Nor
// is it slower: a short all-reduce takes one step between two ranks and two steps among more, where
// Gloo's ring takes 2 (N - 1). The waiting thread does the work itself, without a handover to
// another thread.
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
  Tree(World& world, const Job& job, Bytes data)
      : world_(world), data_(data), root_(job.position.call.root), messages_(world, job) {
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

  // Sends to the child with the most descendants first.
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

// In round k every rank hears from the rank 2^k before it. After the last round it has
// heard from all.
class Rounds {
 public:
  Rounds(World& world, const Job& job) : world_(world), sends_(world, job), receives_(world, job) {}

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

// Every rank sends one piece to every other rank. Each piece is preceded by its length, because a
// receive does not report it. These 8 bytes are not counted, like the headers of the layers below.
class Pieces {
 public:
  using Length = std::uint64_t;

  Pieces(World& world, const Job& job, const Operands& operands)
      : world_(world), job_(job), operands_(operands), sends_(world, job), receives_(world, job) {
    operands.keep_own(call(), world.rank());
  }

  bool has_steps() const { return false; }

  void begin() {
    const std::size_t stride = sizeof(Length) + call().bytes;
    incoming_ = world_.pool().take(stride * (operands_.sizes.size() - 1));
    for_others(world_, [&](int peer) { receives_.receive(arrival(peer), peer); });
    Bytes message;
    for_others(world_, [&](int peer) {
      const bool again = call().kind == Kind::all_gather && !message.empty();  // all peers get it
      if (!again) message = packed(operands_.piece(call(), peer));
      sends_.send(message, peer);
    });
  }

  void finish() {
    for_others(world_, [&](int peer) {
      receives_.wait_next();
      unpack(arrival(peer), peer);
    });
    sends_.wait_all();
  }

 private:
  const Call& call() const { return job_.position.call; }

  Bytes arrival(int peer) const {
    const std::size_t stride = sizeof(Length) + call().bytes;
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
    if (length > call().bytes)
      throw Lost{peer, "rank " + std::to_string(peer) + " announces " + std::to_string(length) +
                           " bytes for a slot of " + std::to_string(call().bytes)};
    const auto r = static_cast<std::size_t>(peer);
    std::ranges::copy(message.subspan(sizeof length, length),
                      operands_.data.data() + r * call().bytes);
    operands_.sizes[r] = length;
  }

  World& world_;
  const Job& job_;
  const Operands operands_;
  std::shared_ptr<Pool::Block> incoming_;
  std::vector<std::shared_ptr<Pool::Block>> outgoing_;
  Messages sends_, receives_;
};

class C10dGroup final : public BaseGroup {
 public:
  explicit C10dGroup(std::shared_ptr<World> world) : BaseGroup(std::move(world), c10d_cost) {}

  std::string name() const override { return "c10d"; }

 private:
  void carry_out(const std::shared_ptr<Job>& job, const Operands& operands) override {
    const Call& call = job->position.call;
    switch (call.kind) {
      case Kind::all_reduce:
        return takes_ring(call.bytes, size()) ? launch<Ring>(job, operands.data)
                                              : launch<Shares>(job, operands.data);
      case Kind::all_gather:
      case Kind::all_to_all:
        return launch<Pieces>(job, operands);
      case Kind::broadcast:
        return launch<Tree>(job, operands.data);
      case Kind::barrier:
        return launch<Rounds>(job);
    }
  }
};

}  // namespace

std::unique_ptr<Group> torch_engine::make_group(c10::intrusive_ptr<c10d::Backend> backend,
                                                const GroupOptions& options, JobStore job_store) {
  auto world = std::make_shared<World>(std::move(backend), options, std::move(job_store));
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
