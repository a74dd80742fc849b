// stop.cc: the last step of an interrupted training.
//
// Ranks are at different steps at any moment, so no rank can simply stop at its own.
//
// Most engines have a store, where the ranks met. A thread of each rank watches it. The first rank
// that gets a signal leaves a note there. Each rank answers the note with the number of steps that
// it has begun, and begins no further step. The largest of these numbers is the last step: each
// rank can reach it, since no rank has begun a later one. The thread answers while the training
// waits in a collective, so no rank can block the others.
//
// Threads of one process share the numbers: the first that sees the signal knows the largest.
//
// MPI has no store. Each rank votes before every step, and counts the votes a few steps later, when
// they have arrived. All ranks count the same votes at the same step.
// SPDX-License-Identifier: Apache-2.0
#include "apps/train/stop.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "apps/train/engine.h"
#include "thinwire/core/error.h"

namespace thinwire::train {
namespace {

constexpr auto look_every = std::chrono::milliseconds(100);

std::atomic<bool> signalled = false;
static_assert(std::atomic<bool>::is_always_lock_free, "the handler of a signal writes it");

// Restores the default for a second signal of the same kind, which then ends the process.
void catch_signal(int signal, bool once) {
  struct sigaction before = {}, action = {};
  sigaction(signal, nullptr, &before);
  if (once && before.sa_handler == SIG_IGN) return;  // nohup ignores it on purpose
  action.sa_handler = [](int) { signalled = true; };
  action.sa_flags = SA_RESTART | (once ? static_cast<int>(SA_RESETHAND) : 0);
  sigaction(signal, &action, nullptr);
}

// launch() blocks SIGINT until here. After a second signal it sends SIGKILL itself.
void catch_signals(bool launched, bool mpi) {
  if (!launched) {
    for (const int each : {SIGINT, SIGTERM, SIGHUP}) catch_signal(each, true);
    if (mpi) catch_signal(SIGUSR1, true);
    return;
  }
  catch_signal(SIGINT, false);
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

}  // namespace

class Stop::Agreement {
 public:
  virtual ~Agreement() = default;
  virtual bool allows(std::uint64_t step) = 0;
};

class Stop::Store final : public Agreement {
 public:
  Store(const Settings& settings, const Place& place)
      : place_(place), timeout_(static_cast<std::int64_t>(settings.timeout * 1e3)) {
    c10d::TCPStoreOptions options;
    options.port = place.port;
    options.timeout = timeout_;
    // torchrun's store survives a restart of the job.
    const char* const restarts = std::getenv("TORCHELASTIC_RESTART_COUNT");
    store_ = c10::make_intrusive<c10d::PrefixStore>(
        std::string("thinwire/stop/") + (restarts == nullptr ? "" : restarts),
        c10::make_intrusive<c10d::TCPStore>(place.host, options));
    thread_ = std::thread([this] { watch(); });
  }

  ~Store() override {
    {
      const std::lock_guard lock(mutex_);
      done_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  bool allows(std::uint64_t step) override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !asked_ || last_ || !failure_.empty(); });
    if (!failure_.empty()) throw Error(failure_);
    if (last_ && step >= *last_) return false;
    begun_ = step + 1;
    return true;
  }

 private:
  static std::string key_of(int rank) { return "begun/" + std::to_string(rank); }

  void watch() {
    try {
      while (pause(look_every)) {
        if (signalled) store_->set("asked", std::vector<std::uint8_t>{1});
        if (store_->check({"asked"})) return agree();
      }
    } catch (const std::exception& error) {
      const std::string text = error.what();
      const std::lock_guard lock(mutex_);
      // Before that, a lost store means a lost rank, and the collectives name it.
      if (asked_) failure_ = "cannot agree on a last step: " + text.substr(0, text.find('\n'));
    }
    changed_.notify_all();
  }

  void agree() {
    std::string begun;
    {
      const std::lock_guard lock(mutex_);
      asked_ = true;
      begun = std::to_string(begun_);
    }
    store_->set(key_of(place_.rank), std::vector<std::uint8_t>(begun.begin(), begun.end()));
    std::uint64_t last = 0;
    for (int rank = 0; rank < place_.world; ++rank) {
      const std::optional<std::uint64_t> theirs = answer_of(rank);
      if (!theirs) return;
      last = std::max(last, *theirs);
    }
    {
      const std::lock_guard lock(mutex_);
      last_ = last;
    }
    changed_.notify_all();
  }

  // Empty if the training has ended in the meantime.
  std::optional<std::uint64_t> answer_of(int rank) {
    const auto deadline = std::chrono::steady_clock::now() + timeout_;
    while (!store_->check({key_of(rank)})) {
      if (!pause(std::chrono::milliseconds(10))) return std::nullopt;
      if (std::chrono::steady_clock::now() > deadline)
        fail("rank ", rank, " did not answer within ", timeout_.count(), " ms");
    }
    const std::vector<std::uint8_t> text = store_->get(key_of(rank));
    return std::stoull(std::string(text.begin(), text.end()));
  }

  // False when the training has ended.
  bool pause(std::chrono::milliseconds time) {
    std::unique_lock lock(mutex_);
    return !changed_.wait_for(lock, time, [this] { return done_; });
  }

  const Place place_;
  const std::chrono::milliseconds timeout_;
  c10::intrusive_ptr<c10d::Store> store_;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool asked_ = false, done_ = false;
  std::uint64_t begun_ = 0;            // steps, counted from the start of the training
  std::optional<std::uint64_t> last_;  // the agreed last step
  std::string failure_;
  std::thread thread_;  // the last member, because it uses all others
};

class Stop::Shared final : public Agreement {
 public:
  explicit Shared(const Place& place) : rank_(static_cast<std::size_t>(place.rank)) {
    const std::lock_guard lock(common().mutex);
    common().begun.resize(static_cast<std::size_t>(place.world));
  }

  bool allows(std::uint64_t step) override {
    const std::lock_guard lock(common().mutex);
    std::vector<std::uint64_t>& begun = common().begun;
    std::optional<std::uint64_t>& last = common().last;
    if (signalled && !last) last = *std::ranges::max_element(begun);
    if (last && step >= *last) return false;
    begun[rank_] = step + 1;
    return true;
  }

 private:
  struct Common {
    std::mutex mutex;
    std::vector<std::uint64_t> begun;  // steps, by rank
    std::optional<std::uint64_t> last;
  };
  static Common& common() {
    static Common all;
    return all;
  }

  const std::size_t rank_;
};

// The votes use their own group, to stay out of the order of the exchange's collectives.
class Stop::Votes final : public Agreement {
 public:
  explicit Votes(const Settings& settings)
      : group_(make_mpi_engine(options_of(settings))), most_(steps_apart(settings)) {}

  bool allows(std::uint64_t) override {
    if (votes_.size() == most_) {
      votes_.front().pending.wait();
      if (votes_.front().stop != 0) return false;
      votes_.pop_front();
    }
    Vote& vote = votes_.emplace_back();
    vote.stop = signalled ? 1 : 0;
    const Bytes bytes = std::as_writable_bytes(std::span(&vote.stop, 1));
    vote.pending = group_->all_reduce(bytes, DType::i32, ReduceOp::max, {});
    return true;
  }

 private:
  struct Vote {
    std::int32_t stop = 0;
    Pending pending;
  };

  // The exchange already waits for a message that is this old, so a vote of that age has arrived.
  static std::size_t steps_apart(const Settings& settings) {
    return settings.delayed ? settings.delayed->delay + settings.delayed->local_steps : 1;
  }

  std::unique_ptr<Group> group_;
  const std::size_t most_;
  std::deque<Vote> votes_;  // in flight, oldest first; a deque does not move its elements
};

bool stops_at_a_step(const Settings& settings) { return !settings.save.empty(); }

Stop::Stop(const Settings& settings, const Place& place) {
  if (!stops_at_a_step(settings)) return;
  const bool mpi = settings.kind == Engine::mpi;
  catch_signals(place.report >= 0, mpi);
  if (place.world == 1) return;
  if (settings.in_threads())
    agreement_ = std::make_unique<Shared>(place);
  else if (mpi)
    agreement_ = std::make_unique<Votes>(settings);
  else
    agreement_ = std::make_unique<Store>(settings, place);
}

Stop::~Stop() = default;

bool Stop::allows(std::uint64_t step) { return agreement_ ? agreement_->allows(step) : !signalled; }

}  // namespace thinwire::train
