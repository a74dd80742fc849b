// local.cc: ranks as threads of one process that meet in a hub.
//
// Each rank numbers its collectives, and calls with equal numbers meet in one Operation. After the
// last rank has arrived, the first rank that looks moves the data for everyone, under the hub's
// lock and in a fixed order, so results do not depend on timing. Ranks keep their own buffers: a
// rank that leaves an unfinished operation says so under the same lock, and nobody touches that
// operation again.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/comm/local.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "thinwire/comm/cost.h"
#include "thinwire/comm/reduce.h"
#include "thinwire/comm/verbs.h"
#include "thinwire/core/error.h"

namespace thinwire {
namespace {

constexpr int kNobody = -1;

// A rank that unwinds drops its operations a moment before its error reaches run_local. The others
// wait this long, so that they report the cause instead of the symptom.
constexpr std::chrono::milliseconds kReasonGrace{100};

void copy(ConstBytes from, Bytes to) { std::ranges::copy(from, to.begin()); }

// What one rank contributes. The buffers are the caller's.
struct Part {
  bool arrived = false;
  Call call = {};
  Operands operands = {};
  Cost cost = {};  // valid once moved
};

struct Operation {
  Operation(std::uint64_t number, std::size_t ranks) : sequence(number), parts(ranks) {}

  const std::uint64_t sequence;
  std::vector<Part> parts;
  std::size_t arrived = 0;
  int first = kNobody;     // who arrived first; the others are compared with it
  int deserter = kNobody;  // who left before it was done
  bool moved = false;

  bool ready() const { return arrived == parts.size() && deserter == kNobody; }
};

// The data movement of each kind; all parts have arrived.
void move_reduce(std::vector<Part>& parts) {
  std::vector<ConstBytes> all;
  for (const Part& part : parts) all.push_back(part.operands.data);
  const Call& call = parts[0].call;
  reduce_ranks(all, call.dtype, call.op, [&](std::size_t at, ConstBytes result) {
    for (const Part& part : parts) copy(result, part.operands.data.subspan(at));
  });
}

void move_pieces(std::vector<Part>& parts) {
  for (std::size_t t = 0; t < parts.size(); ++t) {
    const Operands& to = parts[t].operands;
    for (std::size_t r = 0; r < parts.size(); ++r) {
      const Call& call = parts[r].call;
      const ConstBytes piece = parts[r].operands.piece(call, static_cast<int>(t));
      copy(piece, to.data.subspan(r * call.bytes));
      to.sizes[r] = piece.size();
    }
  }
}

void move_broadcast(std::vector<Part>& parts) {
  const auto root = static_cast<std::size_t>(parts[0].call.root);
  for (std::size_t r = 0; r < parts.size(); ++r)
    if (r != root) copy(parts[root].operands.data, parts[r].operands.data);
}

void move_data(std::vector<Part>& parts) {
  switch (parts[0].call.kind) {
    case Kind::all_reduce:
      return move_reduce(parts);
    case Kind::all_gather:
    case Kind::all_to_all:
      return move_pieces(parts);
    case Kind::broadcast:
      return move_broadcast(parts);
    case Kind::barrier:
      return;
  }
}

class Hub {
 public:
  Hub(int size, const GroupOptions& options)
      : size_(static_cast<std::size_t>(size)),
        timeout_(options.timeout),
        next_(size_, 0),
        left_(size_, false),
        traffic_(size_) {}

  int size() const { return static_cast<int>(size_); }

  std::shared_ptr<Operation> join(int rank, Part part) {
    const std::lock_guard lock(mutex_);
    const auto r = static_cast<std::size_t>(rank);
    const std::uint64_t sequence = next_[r]++;
    if (!broken_.empty()) fail("rank ", rank, ": ", label(part.call, sequence), ": ", broken_);
    auto& operation = open_[sequence];
    if (!operation) operation = std::make_shared<Operation>(sequence, size_);
    compare(*operation, rank, part.call);
    part.arrived = true;
    operation->parts[r] = part;
    auto joined = operation;
    if (++operation->arrived == size_) {
      open_.erase(sequence);
      changed_.notify_all();
    }
    return joined;
  }

  void wait(Operation& operation, int rank) {
    std::unique_lock lock(mutex_);
    const auto settled = [&] {
      return operation.ready() || !broken_.empty() || absentee(operation) != kNobody;
    };
    const bool in_time = changed_.wait_for(lock, timeout_, settled);
    if (operation.ready()) return finish(operation);
    if (in_time && broken_.empty())
      changed_.wait_for(lock, kReasonGrace, [&] { return !broken_.empty(); });
    if (broken_.empty()) break_with(symptom(operation, rank, in_time));
    desert(operation, rank);
    const std::string prefix = "rank " + std::to_string(rank) + ": ";
    if (broken_.starts_with(prefix)) throw Error(broken_);
    throw Error(prefix + label_of(operation, rank) + ": " + broken_);
  }

  bool done(Operation& operation) {
    const std::lock_guard lock(mutex_);
    if (operation.ready()) finish(operation);
    return operation.moved || !broken_.empty() || absentee(operation) != kNobody;
  }

  // Called when the rank's buffers are about to be freed.
  void abandon(Operation& operation, int rank) {
    const std::lock_guard lock(mutex_);
    if (operation.ready()) finish(operation);
    if (!operation.moved) desert(operation, rank);
  }

  // This rank will issue no further collective.
  void leave(int rank) {
    const std::lock_guard lock(mutex_);
    left_[static_cast<std::size_t>(rank)] = true;
    changed_.notify_all();
  }

  // Every unfinished and every further collective fails with the first such text.
  void break_off(const std::string& text) {
    const std::lock_guard lock(mutex_);
    break_with(text);
  }

  Traffic traffic(int rank) const {
    const std::lock_guard lock(mutex_);
    return traffic_[static_cast<std::size_t>(rank)];
  }

 private:
  void break_with(const std::string& text) {
    if (broken_.empty()) broken_ = text;
    changed_.notify_all();
  }

  void compare(Operation& operation, int rank, const Call& call) {
    if (operation.first == kNobody) operation.first = rank;
    if (operation.first == rank) return;
    const Call& expected = operation.parts[static_cast<std::size_t>(operation.first)].call;
    if (call == expected) return;
    break_with(mismatch_text(operation.sequence, operation.first, expected, rank, call));
    throw Error("rank " + std::to_string(rank) + ": " + broken_);
  }

  void finish(Operation& operation) {
    if (operation.moved) return;
    move_data(operation.parts);
    for (std::size_t r = 0; r < size_; ++r) {
      Part& part = operation.parts[r];
      part.cost = c10d_cost(part.call, part.operands, static_cast<int>(r), size());
      add(traffic_[r], part.cost);
    }
    operation.moved = true;
  }

  void desert(Operation& operation, int rank) {
    if (operation.deserter == kNobody) operation.deserter = rank;
    changed_.notify_all();
  }

  // A rank whose absence makes the operation impossible, or nobody.
  int absentee(const Operation& operation) const {
    if (operation.deserter != kNobody) return operation.deserter;
    for (std::size_t r = 0; r < size_; ++r)
      if (left_[r] && !operation.parts[r].arrived) return static_cast<int>(r);
    return kNobody;
  }

  std::string symptom(const Operation& operation, int rank, bool in_time) const {
    const std::string what = label_of(operation, rank);
    if (in_time) return "rank " + std::to_string(absentee(operation)) + " left before " + what;
    std::string silent;
    for (std::size_t r = 0; r < size_; ++r)
      if (!operation.parts[r].arrived) silent += text_of(silent.empty() ? "" : ", ", "rank ", r);
    return text_of("rank ", rank, ": ", what, " timed out after ", timeout_.count(),
                   " ms waiting for ", silent,
                   "; is its thread stuck, or did it issue fewer collectives?");
  }

  static std::string label_of(const Operation& operation, int rank) {
    return label(operation.parts[static_cast<std::size_t>(rank)].call, operation.sequence);
  }

  const std::size_t size_;
  const std::chrono::milliseconds timeout_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::uint64_t, std::shared_ptr<Operation>> open_;  // some rank has yet to arrive
  std::vector<std::uint64_t> next_;                           // sequence number, by rank
  std::vector<bool> left_;
  std::vector<Traffic> traffic_;
  std::string broken_;  // why the group has failed; empty while all is well
};

class LocalWork final : public Pending::Work {
 public:
  LocalWork(std::shared_ptr<Hub> hub, std::shared_ptr<Operation> operation, int rank)
      : hub_(std::move(hub)), operation_(std::move(operation)), rank_(rank) {}

  // The caller may free the buffers after dropping a work without wait(), so end it first. While an
  // exception unwinds, do not block for ranks that may never come.
  ~LocalWork() override {
    if (finished_) return;
    if (std::uncaught_exceptions() > exceptions_) {
      hub_->abandon(*operation_, rank_);
      return;
    }
    try {
      wait();
    } catch (const Error&) {  // the hub remembers: the next call throws
    }
  }

  void wait() override {
    if (!finished_) hub_->wait(*operation_, rank_);
    finished_ = true;
  }
  bool done() override { return hub_->done(*operation_); }
  Cost cost() const override { return operation_->parts[static_cast<std::size_t>(rank_)].cost; }

 private:
  std::shared_ptr<Hub> hub_;
  std::shared_ptr<Operation> operation_;
  const int rank_;
  const int exceptions_ = std::uncaught_exceptions();
  bool finished_ = false;
};

class LocalGroup final : public EngineGroup {
 public:
  LocalGroup(std::shared_ptr<Hub> hub, int rank) : hub_(std::move(hub)), rank_(rank) {}
  ~LocalGroup() override { hub_->leave(rank_); }
  LocalGroup(const LocalGroup&) = delete;
  LocalGroup& operator=(const LocalGroup&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return hub_->size(); }
  std::string name() const override { return "local"; }
  Traffic traffic() const override { return hub_->traffic(rank_); }

 private:
  Pending start(const Call& call, const Operands& operands) override {
    try {
      check(rank_, size(), call, operands);
    } catch (const Error& error) {  // other ranks must not wait for a call that never comes
      hub_->break_off(error.what());
      throw;
    }
    auto operation = hub_->join(rank_, {.call = call, .operands = operands});
    return Pending(std::make_unique<LocalWork>(hub_, std::move(operation), rank_));
  }

  std::shared_ptr<Hub> hub_;
  const int rank_;
};

std::vector<std::unique_ptr<Group>> make_groups(const std::shared_ptr<Hub>& hub) {
  std::vector<std::unique_ptr<Group>> groups;
  groups.reserve(static_cast<std::size_t>(hub->size()));
  for (int rank = 0; rank < hub->size(); ++rank)
    groups.push_back(std::make_unique<LocalGroup>(hub, rank));
  return groups;
}

std::shared_ptr<Hub> make_hub(int size, const GroupOptions& options) {
  if (size < 1) fail("local group: expected at least 1 rank, got ", size);
  return std::make_shared<Hub>(size, options);
}

std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& known) {
    return known.what();
  } catch (...) {
    return "an exception of unknown type";
  }
}

}  // namespace

std::vector<std::unique_ptr<Group>> make_local_groups(int size, const GroupOptions& options) {
  return make_groups(make_hub(size, options));
}

void run_local(int size, const std::function<void(Group&)>& body, const GroupOptions& options) {
  const auto hub = make_hub(size, options);
  const auto groups = make_groups(hub);
  std::vector<std::exception_ptr> errors(groups.size());
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < groups.size(); ++r) {
    threads.emplace_back([&, r] {
      try {
        body(*groups[r]);
      } catch (...) {
        errors[r] = std::current_exception();
        hub->break_off("rank " + std::to_string(r) + " failed: " + text_of(errors[r]));
      }
      hub->leave(static_cast<int>(r));
    });
  }
  for (auto& thread : threads) thread.join();
  for (const auto& error : errors)
    if (error) std::rethrow_exception(error);
}

}  // namespace thinwire
