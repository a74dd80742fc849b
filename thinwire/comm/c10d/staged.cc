// staged.cc: the hosts agree first, then the devices run one collective.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/comm/c10d/staged.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "thinwire/comm/c10d/base.h"
#include "thinwire/comm/c10d/device_backend.h"
#include "thinwire/comm/c10d/device_stream.h"
#include "thinwire/comm/c10d/messages.h"
#include "thinwire/comm/cost.h"
#include "thinwire/comm/whole.h"

namespace thinwire::torch_engine {
namespace {

using c10d::Backend;
using Tensors = std::vector<at::Tensor>;

// Every rank sends one number to every other rank. These 8 bytes are not counted, like the headers
// of the layers below.
class Agreement {
 public:
  using Number = std::uint64_t;

  Agreement(World& world, const Job& job)
      : world_(world),
        told_(static_cast<std::size_t>(world.size())),
        heard_(told_.size()),
        sends_(world, job),
        receives_(world, job) {}

  Number& told(int peer) { return told_[static_cast<std::size_t>(peer)]; }
  Number heard(int peer) const { return heard_[static_cast<std::size_t>(peer)]; }

  void begin() {
    for_others(world_, [&](int peer) { receives_.receive(bytes_of(heard_, peer), peer); });
    for_others(world_, [&](int peer) { sends_.send(bytes_of(told_, peer), peer); });
  }

  void finish() {
    receives_.wait_all();
    sends_.wait_all();
  }

 private:
  static Bytes bytes_of(std::vector<Number>& numbers, int peer) {
    return std::as_writable_bytes(std::span(&numbers[static_cast<std::size_t>(peer)], 1));
  }

  World& world_;
  std::vector<Number> told_, heard_;
  Messages sends_, receives_;
};

// What all patterns here share. All of them have steps, because the device must start even if
// nobody waits.
class Staged {
 public:
  Staged(World& world, Job& job, std::shared_ptr<DeviceBackend> device)
      : world_(world), job_(job), device_(std::move(device)), agreement_(world, job) {}
  virtual ~Staged() = default;

  bool has_steps() const { return true; }
  void begin() { agreement_.begin(); }

  void finish() {
    try {
      agreement_.finish();
      move();
    } catch (const Lost&) {
      device_->break_off();
      throw;
    }
  }

 protected:
  virtual void move() {}  // the rest of the work, once all ranks agree

  World& world_;
  Job& job_;
  std::shared_ptr<DeviceBackend> device_;
  Agreement agreement_;
};

class StagedReduce : public Staged {
 public:
  StagedReduce(World& world, Job& job, const std::shared_ptr<DeviceBackend>& device, Bytes data)
      : Staged(world, job, device), data_(data) {}

  void move() override {
    if (data_.empty()) return;
    if (!whole()) return reduce(data_, scalar_of(call().dtype));
    numbers_.resize(data_.size() / size_of(call().dtype));
    to_whole(data_, call().dtype, numbers_);
    reduce(std::as_writable_bytes(std::span(numbers_)), at::kInt);
    from_whole(numbers_, call().dtype, data_);
  }

 private:
  const Call& call() const { return job_.position.call; }
  bool whole() const { return needs_whole(call().dtype, call().op); }

  void reduce(Bytes data, at::ScalarType type) {
    device_->use(world_, [&](Backend& backend) {
      at::Tensor host = host_tensor(data.data(), data.size());
      at::Tensor bytes = device_->room(data.size());
      bytes.copy_(host);
      Tensors elements = {bytes.view(type)};
      c10d::AllreduceOptions options;
      options.reduceOp = call().op == ReduceOp::sum ? c10d::ReduceOp::SUM : c10d::ReduceOp::MAX;
      wait_for(world_, backend.allreduce(elements, options));
      host.copy_(bytes);
    });
  }

  Bytes data_;
  std::vector<std::int32_t> numbers_;
};

class StagedBroadcast : public Staged {
 public:
  StagedBroadcast(World& world, Job& job, const std::shared_ptr<DeviceBackend>& device, Bytes data)
      : Staged(world, job, device), data_(data) {}

  void move() override {
    if (data_.empty()) return;
    device_->use(world_, [&](Backend& backend) {
      const int root = job_.position.call.root;
      at::Tensor host = host_tensor(data_.data(), data_.size());
      Tensors bytes = {device_->room(data_.size())};
      if (world_.rank() == root) bytes[0].copy_(host);
      c10d::BroadcastOptions options;
      options.rootRank = root;
      wait_for(world_, backend.broadcast(bytes, options));
      if (world_.rank() != root) host.copy_(bytes[0]);
    });
  }

 private:
  Bytes data_;
};

// Every rank sends one piece to every other rank, of the length that it announced.
class StagedPieces : public Staged {
 public:
  StagedPieces(World& world, Job& job, const std::shared_ptr<DeviceBackend>& device,
               const Operands& operands)
      : Staged(world, job, device), operands_(operands) {
    operands.keep_own(call(), world.rank());
    for_others(world, [&](int peer) { agreement_.told(peer) = piece(peer).size(); });
  }

  void move() override {
    for_others(world_, [&](int peer) { note_length(peer); });
    if (call().bytes == 0) return;
    device_->use(world_, [&](Backend& backend) {
      const Splits out = splits([&](int peer) { return piece(peer).size(); });
      const Splits in =
          splits([&](int peer) { return operands_.sizes[static_cast<std::size_t>(peer)]; });
      at::Tensor outgoing = gathered(out), incoming = device_->room(total(in));
      Splits taken = in, given = out;  // Gloo keeps references to them
      wait_for(world_, backend.alltoall_base(incoming, outgoing, taken, given));
      hand_out(incoming, in);
    });
  }

 private:
  using Splits = std::vector<std::int64_t>;  // bytes by rank

  const Call& call() const { return job_.position.call; }
  ConstBytes piece(int peer) const { return operands_.piece(call(), peer); }

  void note_length(int peer) {
    const Agreement::Number length = agreement_.heard(peer);
    if (length > call().bytes)
      throw Lost{peer, "rank " + std::to_string(peer) + " announces " + std::to_string(length) +
                           " bytes for a slot of " + std::to_string(call().bytes)};
    operands_.sizes[static_cast<std::size_t>(peer)] = length;
  }

  // One byte to ourselves, so that no tensor is empty.
  template <typename Length>
  Splits splits(Length length) const {
    Splits all(operands_.sizes.size(), 1);
    for_others(world_, [&](int peer) {
      all[static_cast<std::size_t>(peer)] = static_cast<std::int64_t>(length(peer));
    });
    return all;
  }

  static std::size_t total(const Splits& splits) {
    return static_cast<std::size_t>(std::accumulate(splits.begin(), splits.end(), std::int64_t{0}));
  }

  // A piece for several ranks is copied to the device once.
  at::Tensor gathered(const Splits& out) const {
    at::Tensor all = device_->room(total(out)), last;
    ConstBytes on_device;
    std::int64_t at = 0;
    for (int r = 0; r < world_.size(); ++r) {
      const ConstBytes bytes = piece(r);
      at::Tensor place = all.narrow(0, at, out[static_cast<std::size_t>(r)]);
      at += place.numel();
      if (r == world_.rank() || bytes.empty()) continue;
      const bool again = bytes.data() == on_device.data() && bytes.size() == on_device.size();
      place.copy_(again ? last : host_tensor(bytes.data(), bytes.size()));
      last = place;
      on_device = bytes;
    }
    return all;
  }

  void hand_out(const at::Tensor& incoming, const Splits& in) const {
    std::int64_t at = 0;
    for (int r = 0; r < world_.size(); ++r) {
      const auto index = static_cast<std::size_t>(r);
      const at::Tensor place = incoming.narrow(0, at, in[index]);
      at += place.numel();
      if (r == world_.rank() || place.numel() == 0) continue;
      host_tensor(operands_.data.data() + index * call().bytes, operands_.sizes[index])
          .copy_(place);
    }
  }

  const Operands operands_;
};

class StagedGroup final : public BaseGroup {
 public:
  StagedGroup(std::shared_ptr<World> world, std::shared_ptr<DeviceBackend> device, std::string name)
      : BaseGroup(std::move(world), nccl_cost),
        device_(std::move(device)),
        name_(std::move(name)) {}

  // A backend that waits for a lost rank does not end by itself.
  ~StagedGroup() override {
    if (world_->failed()) device_->break_off();
  }

  std::string name() const override { return name_; }

 private:
  void carry_out(const std::shared_ptr<Job>& job, const Operands& operands) override {
    switch (job->position.call.kind) {
      case Kind::all_reduce:
        return launch<StagedReduce>(job, device_, operands.data);
      case Kind::all_gather:
      case Kind::all_to_all:
        return launch<StagedPieces>(job, device_, operands);
      case Kind::broadcast:
        return launch<StagedBroadcast>(job, device_, operands.data);
      case Kind::barrier:
        return launch<Staged>(job, device_);
    }
  }

  std::shared_ptr<DeviceBackend> device_;
  std::string name_;
};

}  // namespace

std::unique_ptr<Group> make_staged_group(const Rendezvous& at, const GroupOptions& options,
                                         c10::Device device, const std::string& name,
                                         const MakeBackend& make) {
  check(at);
  if (at.world == 1) return make_group({}, options, {});
  Joined joined = join(at, options);
  auto on_device = std::make_shared<DeviceBackend>(make(joined.job_store.store), device);
  auto world =
      std::make_shared<World>(std::move(joined.backend), options, std::move(joined.job_store));
  return std::make_unique<StagedGroup>(std::move(world), std::move(on_device), name);
}

}  // namespace thinwire::torch_engine
