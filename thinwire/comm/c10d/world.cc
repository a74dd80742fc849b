// world.cc: messages over a c10d backend, and the diagnosis when they stop coming.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/comm/c10d/world.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <csignal>
#include <exception>
#include <type_traits>
#include <utility>

#include "thinwire/comm/c10d/within.h"
#include "thinwire/core/error.h"
#include "thinwire/core/random.h"

namespace thinwire::torch_engine {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

static_assert(std::is_trivially_copyable_v<Statement>);

std::string name_of_rank(int rank) { return "rank " + std::to_string(rank); }

std::string list_of(const std::vector<std::string>& items) {
  std::string text;
  for (const auto& item : items) text.append(text.empty() ? "" : ", ").append(item);
  return text;
}

// Each call gets its own tag. When ranks issue different calls under the same number, their
// messages never match. This matters because Gloo ends the process when a message is longer than
// the receive posted for it. Two calls may share a tag by chance without harm, because messages
// with one tag arrive in order.
int tag_of(const Position& position) {
  const Call& call = position.call;
  const std::uint64_t small =
      static_cast<std::uint64_t>(call.kind) | static_cast<std::uint64_t>(call.dtype) << 8 |
      static_cast<std::uint64_t>(call.op) << 16 | static_cast<std::uint64_t>(call.root) << 32;
  return static_cast<int>(random_at(random_at(small, call.bytes), position.sequence) >> 33);
}

// The first sentence of c10d's text, without the source location.
std::string first_words(const std::string& text) {
  const std::size_t place = text.find("] ");
  const std::size_t start = text.starts_with("[/") && place != text.npos ? place + 2 : 0;
  return text.substr(start, text.find('\n', start) - start).substr(0, 160);
}

bool is_timeout(const std::string& text) {
  return text.find("imed out") != text.npos || text.find("imeout") != text.npos;
}

at::Tensor tensor_over(const std::byte* data, std::size_t bytes) {
  return at::from_blob(const_cast<std::byte*>(data), {static_cast<std::int64_t>(bytes)}, at::kByte);
}

std::string key_of(int rank) { return "roll/" + std::to_string(rank); }

std::vector<std::uint8_t> bytes_of(const Statement& statement) {
  std::vector<std::uint8_t> bytes(sizeof statement);
  std::memcpy(bytes.data(), &statement, sizeof statement);
  return bytes;
}

std::optional<Statement> statement_in(const std::vector<std::uint8_t>& bytes) {
  Statement statement;
  if (bytes.size() != sizeof statement) return std::nullopt;
  std::memcpy(&statement, bytes.data(), sizeof statement);
  statement.reason[sizeof statement.reason - 1] = 0;
  return statement;
}

// Gloo writes to sockets without a flag against SIGPIPE. The signal would end this process when a
// peer is lost, where we want an error that names the peer. A program that has set a disposition
// for the signal keeps it.
void ignore_broken_pipes() {
  struct sigaction now {};
  if (sigaction(SIGPIPE, nullptr, &now) != 0 || now.sa_handler != SIG_DFL) return;
  now.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &now, nullptr);
}

}  // namespace

std::shared_ptr<Pool::Block> Pool::take(std::size_t bytes) {
  std::unique_ptr<Block> block;
  {
    const std::lock_guard lock(shelf_->mutex);
    auto& blocks = shelf_->blocks;
    const auto fit =
        std::ranges::find_if(blocks, [&](const auto& b) { return b->capacity() >= bytes; });
    if (fit != blocks.end()) {
      block = std::move(*fit);
      blocks.erase(fit);
    }
  }
  if (!block) block = std::make_unique<Block>();
  if (block->size() < bytes) block->resize(bytes);
  return {block.release(), [shelf = shelf_](Block* used) {
            constexpr std::size_t kept = 64;  // enough for a few gathers of a large group
            std::unique_ptr<Block> owner(used);
            const std::lock_guard lock(shelf->mutex);
            if (shelf->blocks.size() < kept) shelf->blocks.push_back(std::move(owner));
          }};
}

World::World(c10::intrusive_ptr<c10d::Backend> backend, const GroupOptions& options,
             JobStore job_store)
    : options_(options),
      job_store_(std::move(job_store)),
      rank_(backend ? backend->getRank() : 0),
      size_(backend ? backend->getSize() : 1),
      exceptions_(std::uncaught_exceptions()),
      backend_(std::move(backend)) {
  if (size_ == 1) return;
  ignore_broken_pipes();
  thread_ = std::thread([this] { loop(); });
}

World::~World() {
  if (!thread_.joinable()) return;
  if (std::uncaught_exceptions() > exceptions_ && !failed()) {
    try {
      refuse({}, name_of_rank(rank_) + " left by an exception");
    } catch (const Error&) {  // this rank ends anyway; the others get the error
    }
  }
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  called_.notify_all();
  thread_.join();
}

bool World::failed() const {
  const std::lock_guard lock(mutex_);
  return !failure_.empty();
}

Traffic World::traffic() const {
  const std::lock_guard lock(mutex_);
  return traffic_;
}

milliseconds World::grace() const {
  return std::clamp(options_.timeout / 4, milliseconds(1500), milliseconds(5000));
}

std::shared_ptr<Job> World::issue(const Call& call) {
  const std::lock_guard lock(mutex_);
  if (!failure_.empty()) throw Error(failure_);
  auto job = std::make_shared<Job>();
  job->position = {call, issued_};
  job->tag = tag_of(job->position);
  recent_[issued_++ % Statement::kMemory] = call;
  return job;
}

void World::launch(const std::shared_ptr<Job>& job, const std::function<void()>& begin) {
  if (size_ == 1) {
    if (job->finish) job->finish();
    job->done = true;
    charge(*job);
    return;
  }
  try {
    begin();
  } catch (const Lost& lost) {
    job->lost = lost;
  }
  const std::lock_guard lock(mutex_);
  jobs_.push_back(job);
  if (job->has_steps || job->lost) needed_ = true;
  if (needed_ || !failure_.empty()) called_.notify_all();
}

World::Message World::send(ConstBytes from, int peer, const Job& job) {
  const std::lock_guard lock(posting_);
  if (!backend_) throw Lost{peer, "the group has ended"};
  try {
    std::vector<at::Tensor> tensors = {tensor_over(from.data(), from.size())};
    return backend_->send(tensors, peer, job.tag);
  } catch (const std::exception& error) {
    throw Lost{peer, error.what()};
  }
}

World::Message World::receive(Bytes to, int peer, const Job& job) {
  const std::lock_guard lock(posting_);
  if (!backend_) throw Lost{peer, "the group has ended"};
  try {
    std::vector<at::Tensor> tensors = {tensor_over(to.data(), to.size())};
    return backend_->recv(tensors, peer, job.tag);
  } catch (const std::exception& error) {
    throw Lost{peer, error.what()};
  }
}

void World::wait(const Message& message, int peer) {
  {
    const std::lock_guard lock(mutex_);
    if (!failure_.empty()) throw Lost{peer, failure_};
    current_ = message;
  }
  std::string text;
  try {
    if (!message->wait(options_.timeout)) text = "broken off";
  } catch (const std::exception& error) {
    text = error.what();
  }
  const std::lock_guard lock(mutex_);
  current_.reset();
  if (!text.empty()) throw Lost{peer, text};
}

void World::look(const std::function<bool()>& come) {
  const auto start = Clock::now();
  while (!come()) {
    if (failed()) throw Lost{rank_, "broken off"};
    const auto passed = Clock::now() - start;
    if (passed >= options_.timeout) throw Lost{rank_, "timed out"};
    // Yields without sleeping at first: a sleep would take longer than a small message.
    if (passed < milliseconds(1))
      std::this_thread::yield();
    else
      std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

void World::finish(const Job& job) {
  std::unique_lock lock(mutex_);
  while (!job.done) {
    if (driven_ || !failure_.empty())
      changed_.wait(lock);
    else
      drive(lock);
  }
  if (job.lost) throw Error(failure_);
}

bool World::done_within(const Job& job, milliseconds limit) {
  std::unique_lock lock(mutex_);
  if (job.done) return true;
  needed_ = true;
  called_.notify_all();
  return changed_.wait_for(lock, limit, [&] { return job.done; });
}

void World::loop() {
  std::unique_lock lock(mutex_);
  const auto has_work = [&] {
    return !driven_ && (!failure_.empty() || (needed_ && !jobs_.empty()));
  };
  for (;;) {
    called_.wait(lock, [&] { return ending_ || has_work(); });
    if (!failure_.empty()) break;
    if (!has_work()) return;
    drive(lock);
  }
  lock.unlock();
  close();
  // Calls that were being issued when the group failed arrive late. They fail too.
  for (lock.lock(); !ending_;) {
    fail_all();
    changed_.notify_all();
    called_.wait(lock, [&] { return ending_ || !jobs_.empty(); });
  }
}

// Completes the first job in the line.
void World::drive(std::unique_lock<std::mutex>& lock) {
  driven_ = true;
  const auto job = jobs_.front();
  lock.unlock();
  run(*job);
  lock.lock();
  driven_ = false;
  if (jobs_.empty()) needed_ = false;
  changed_.notify_all();
  if (needed_ || !failure_.empty()) called_.notify_all();
}

void World::fail_all() {
  for (const auto& job : jobs_) {
    job->done = true;
    if (!job->lost) job->lost.emplace();
    job->finish = nullptr;
  }
  jobs_.clear();
}

void World::run(Job& job) {
  try {
    if (job.lost) throw Lost(*job.lost);
    job.finish();
  } catch (const Lost& lost) {
    give_up(job.position, lost);
    return;  // the world's thread ends this job together with all others
  }
  job.finish = nullptr;
  const std::lock_guard lock(mutex_);
  jobs_.pop_front();
  charge(job);
  job.done = true;
}

void World::charge(Job& job) {
  job.cost = job.price();
  add(traffic_, job.cost);
}

// Closes the connections, so that ranks that wait for us notice. Drops the messages first, because
// they point to the connections.
void World::close() {
  std::deque<std::shared_ptr<Job>> jobs;
  {
    const std::lock_guard lock(mutex_);
    jobs = jobs_;
  }
  for (const auto& job : jobs) job->finish = nullptr;
  const std::lock_guard lock(posting_);
  backend_.reset();
}

void World::break_off(const std::string& text) {
  Message waiting;
  {
    const std::lock_guard lock(mutex_);
    if (failure_.empty()) failure_ = text;
    waiting = current_;
  }
  if (waiting) waiting->abort();
  called_.notify_all();
}

// Publishes the reason before it breaks the connections: a rank that sees a broken connection looks
// for the reason.
void World::refuse(const Position& position, const std::string& text) {
  const bool announced = announce(position, text);
  break_off(text);
  if (announced && rank_ == job_store_.host)
    listen();  // the store must live until the others have read it
  throw Error(text);
}

void World::give_up(const Position& position, const Lost& lost) {
  if (failed()) return;
  const bool announced = announce(position, "");
  close();  // now, so that ranks that wait for us join the roll call
  break_off(verdict(position, lost, announced ? listen() : std::nullopt));
}

Statement World::statement(const Position& position, const std::string& reason) const {
  const std::lock_guard lock(mutex_);
  Statement statement;
  statement.position = position;
  statement.issued = issued_;
  std::ranges::copy(recent_, statement.recent);
  reason.copy(statement.reason, sizeof statement.reason - 1);
  return statement;
}

bool World::announce(const Position& position, const std::string& reason) {
  if (!job_store_.store) return false;
  const auto announced = within(grace(), [store = job_store_.store, key = key_of(rank_),
                                          bytes = bytes_of(statement(position, reason))] {
    store->set(key, bytes);
    return true;
  });
  return announced.has_value();
}

std::optional<World::Answers> World::listen() const {
  if (!job_store_.store) return std::nullopt;
  const auto end = Clock::now() + grace(), last = end + grace();
  const bool host = rank_ == job_store_.host;
  return within(3 * grace(), [store = job_store_.store, end, last, host, size = size_, me = rank_] {
    Answers answers(static_cast<std::size_t>(size));
    for (;;) {
      int heard = 1, reading = 0;
      for (int r = 0; r < size; ++r) {
        auto& answer = answers[static_cast<std::size_t>(r)];
        if (r == me) continue;
        if (!answer && store->check({key_of(r)})) answer = statement_in(store->get(key_of(r)));
        if (answer) ++heard;
        if (answer && host && !store->check({"left/" + std::to_string(r)})) ++reading;
      }
      // The host stays until nobody reads any more, because its store ends with it.
      const auto now = Clock::now();
      if (host ? now >= last || (now >= end && reading == 0) : now >= end || heard == size) break;
      std::this_thread::sleep_for(milliseconds(10));
    }
    if (!host) store->set("left/" + std::to_string(me), std::vector<std::uint8_t>{1});
    return answers;
  });
}

// What another rank's statement proves to be wrong; empty if it proves nothing.
std::string World::blame(const Position& position, const Statement& own, int rank,
                         const Statement& other) const {
  const std::string here = name_of_rank(rank_) + ": ";
  if (other.reason[0])
    return here + label(position.call, position.sequence) + ": " + name_of_rank(rank) +
           " reports: " + other.reason;
  for (std::uint64_t s = 0; s < own.issued; ++s) {
    if (!own.remembers(s) || !other.remembers(s)) continue;
    const Call& mine = own.recent[s % Statement::kMemory];
    const Call& theirs = other.recent[s % Statement::kMemory];
    if (mine == theirs) continue;
    return here + (rank_ < rank ? mismatch_text(s, rank_, mine, rank, theirs)
                                : mismatch_text(s, rank, theirs, rank_, mine));
  }
  return "";
}

std::string World::verdict(const Position& position, const Lost& lost,
                           const std::optional<Answers>& answers) const {
  const std::string advice =
      "; is it alive? Look at its log; if it is only slow, raise the time limit";
  std::string start = name_of_rank(rank_) + ": " + label(position.call, position.sequence);
  start += is_timeout(lost.text)
               ? " timed out after " + std::to_string(options_.timeout.count()) + " ms"
               : " broken off (" + first_words(lost.text) + ")";
  if (!job_store_.store) return start + " waiting for " + name_of_rank(lost.peer) + advice;
  if (!answers)
    return start + (job_store_.host < 0
                        ? " and the store of the job does not answer"
                        : " waiting for " + name_of_rank(job_store_.host) + " (silent)" + advice);
  std::vector<std::string> absent, elsewhere;
  const Statement own = statement(position, "");
  for (int r = 0; r < size_; ++r) {
    if (r == rank_) continue;
    const auto& answer = (*answers)[static_cast<std::size_t>(r)];
    if (!answer) {
      absent.push_back(name_of_rank(r) + " (silent)");
      continue;
    }
    if (std::string text = blame(position, own, r, *answer); !text.empty()) return text;
    const auto& [call, sequence] = answer->position;
    const std::string place = name_of_rank(r) + " (in " + label(call, sequence) + ")";
    if (answer->issued <= position.sequence) absent.push_back(place);
    if (sequence != position.sequence) elsewhere.push_back(place);
  }
  if (!absent.empty()) return start + " waiting for " + list_of(absent) + advice;
  if (!elsewhere.empty())
    return start + " while others are at " + list_of(elsewhere) +
           "; all ranks must issue the same collectives in the same order";
  return start + " although all ranks take part; if the network is only slow, raise the time limit";
}

}  // namespace thinwire::torch_engine
