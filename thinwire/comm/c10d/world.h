// world.h: what the collectives of one c10d group share: messages, the line of collectives in
// flight, the failure, and the roll call that finds silent ranks. Internal to the engine.
//
// Collectives complete one by one, in the order of issue, in one thread at a time: a thread that
// waits for a collective works through the line up to it. The world's own thread does this only
// when nobody may be waiting and there is work to do: a collective with several steps, one that is
// polled, or a failure. Waking that thread for every collective would cost more than a small
// collective takes.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "thinwire/comm/call.h"
#include "thinwire/comm/cost.h"

namespace thinwire::torch_engine {

// A call and its number: what a rank is waiting for.
struct Position {
  Call call;
  std::uint64_t sequence = 0;
};

// What a rank leaves in the store when it gives up. Ranks run the same program on similar machines,
// so it is sent as raw bytes.
struct Statement {
  static constexpr std::size_t kMemory = 8;

  Position position;
  std::uint64_t issued = 0;  // collectives so far
  Call recent[kMemory];      // call number s, where remembered, at s % kMemory
  char reason[256] = {};     // what it knows to be wrong; empty after a plain timeout

  bool remembers(std::uint64_t s) const { return s < issued && s + kMemory >= issued; }
};

// A message that did not arrive.
struct Lost {
  int peer = 0;
  std::string text;  // c10d's error text
};

// Memory for messages in flight. Large blocks are reused, because fresh pages cost
// more than copies.
class Pool {
 public:
  using Block = std::vector<std::byte>;
  std::shared_ptr<Block> take(std::size_t bytes);

 private:
  struct Shelf {
    std::mutex mutex;
    std::vector<std::unique_ptr<Block>> blocks;
  };
  std::shared_ptr<Shelf> shelf_ = std::make_shared<Shelf>();
};

// A collective in flight. `finish` may block, and may throw Lost.
struct Job {
  Position position;
  std::function<Cost()> price;  // called when it is finished
  Cost cost;
  int tag = 0;
  bool has_steps = false;  // it sends more once something has arrived
  std::function<void()> finish;
  std::optional<Lost> lost;  // found when it was begun
  bool done = false;         // guarded by the world's mutex
};

// Where ranks leave messages for each other when collectives fail. Absent for a backend that the
// program provided.
struct JobStore {
  c10::intrusive_ptr<c10d::Store> store;
  int host = -1;  // the rank whose process holds the store, or -1
};

class World {
 public:
  using Message = c10::intrusive_ptr<c10d::Work>;

  World(c10::intrusive_ptr<c10d::Backend> backend, const GroupOptions& options, JobStore job_store);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  const GroupOptions& options() const { return options_; }
  Traffic traffic() const;
  bool failed() const;
  Pool& pool() { return pool_; }

  // Gives the call its number. Throws when the group has failed.
  std::shared_ptr<Job> issue(const Call& call);

  // Posts the first messages of a job and puts it in the line.
  void launch(const std::shared_ptr<Job>& job, const std::function<void()>& begin);

  // Messages between two ranks with the same tag arrive in order. A receive takes any message up to
  // its length. The memory must live until wait(), or until the job is done.
  Message send(ConstBytes from, int peer, const Job& job);
  Message receive(Bytes to, int peer, const Job& job);
  void wait(const Message& message, int peer);  // inside Job::finish only

  // Polls `come` until it is true, for events other than messages. Throws Lost at the time limit
  // and when the group was aborted. Call it inside Job::finish only.
  void look(const std::function<bool()>& come);

  // Works until the job is done. Throws the group's failure.
  void finish(const Job& job);
  // True when the world's thread completes the job within the limit. Does not throw.
  bool done_within(const Job& job, std::chrono::milliseconds limit);

  // Ends the group: nothing in flight will complete.
  void break_off(const std::string& text);

  // Ends the group for a reason known to this rank, and tells the others, who are waiting for us.
  [[noreturn]] void refuse(const Position& position, const std::string& text);

  // How long a roll call listens. Ranks that wait answer within milliseconds.
  std::chrono::milliseconds grace() const;

 private:
  using Answers = std::vector<std::optional<Statement>>;  // by rank

  void loop();
  void drive(std::unique_lock<std::mutex>& lock);
  void run(Job& job);
  void fail_all();
  void charge(Job& job);
  void give_up(const Position& position, const Lost& lost);
  void close();
  bool announce(const Position& position, const std::string& reason);  // false: nobody heard
  std::optional<Answers> listen() const;
  Statement statement(const Position& position, const std::string& reason) const;
  std::string verdict(const Position& position, const Lost& lost,
                      const std::optional<Answers>& answers) const;
  std::string blame(const Position& position, const Statement& own, int rank,
                    const Statement& other) const;

  const GroupOptions options_;
  const JobStore job_store_;
  const int rank_;
  const int size_;
  const int exceptions_;
  Pool pool_;

  std::mutex posting_;  // c10d does not promise that two threads may post at once
  c10::intrusive_ptr<c10d::Backend> backend_;

  mutable std::mutex mutex_;         // guards what follows
  std::condition_variable changed_;  // for those who wait for a job
  std::condition_variable called_;   // for the world's thread
  std::deque<std::shared_ptr<Job>> jobs_;
  bool driven_ = false;  // some thread works through the line
  bool needed_ = false;  // the world's thread must work, until the line is empty
  Message current_;      // what the working thread is waiting for
  Traffic traffic_;
  Call recent_[Statement::kMemory];
  std::uint64_t issued_ = 0;
  std::string failure_;
  bool ending_ = false;

  std::thread thread_;
};

// A group over a backend (none: a group of one) and, if there is one, the job's store.
std::unique_ptr<Group> make_group(c10::intrusive_ptr<c10d::Backend> backend,
                                  const GroupOptions& options, JobStore job_store);

}  // namespace thinwire::torch_engine
