// parallel.cc: a small thread pool. It runs one loop at a time; its threads sleep between loops.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/core/parallel.h"

#include <condition_variable>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "thinwire/core/error.h"

namespace thinwire {
namespace {

class Pool {
 public:
  explicit Pool(int threads) {
    for (int i = 1; i < threads; ++i) helpers_.emplace_back([this] { help(); });
  }

  ~Pool() {
    {
      const std::lock_guard lock(mutex_);
      closing_ = true;
    }
    wake_.notify_all();
    for (std::thread& helper : helpers_) helper.join();
  }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int threads() const { return static_cast<int>(helpers_.size()) + 1; }

  // Returns false when another loop occupies the pool.
  bool run(std::size_t pieces, const std::function<void(std::size_t)>& body) {
    std::unique_lock lock(mutex_);
    if (body_ != nullptr) return false;
    body_ = &body;
    left_ = pieces;
    wake_.notify_all();
    work(lock);
    done_.wait(lock, [this] { return busy_ == 0; });
    body_ = nullptr;
    return true;
  }

 private:
  void help() {
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait(lock, [this] { return closing_ || left_ > 0; });
      if (closing_) return;
      work(lock);
    }
  }

  void work(std::unique_lock<std::mutex>& lock) {
    while (left_ > 0) {
      const std::size_t piece = --left_;
      const auto& body = *body_;
      ++busy_;
      lock.unlock();
      body(piece);
      lock.lock();
      --busy_;
    }
    if (busy_ == 0) done_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable wake_, done_;
  const std::function<void(std::size_t)>* body_ = nullptr;
  std::size_t left_ = 0;  // pieces that nobody has begun; the last one is taken first
  int busy_ = 0;
  bool closing_ = false;
  std::vector<std::thread> helpers_;
};

int threads_from_environment() {
  const char* text = std::getenv("THINWIRE_THREADS");
  if (text == nullptr) return 1;
  char* end = nullptr;
  const long threads = std::strtol(text, &end, 10);
  if (end == text || *end != '\0' || threads < 1 || threads > 1024) {
    fail("THINWIRE_THREADS: expected a number of threads from 1 to 1024, got '", text, "'");
  }
  return static_cast<int>(threads);
}

std::unique_ptr<Pool>& pool() {
  static std::unique_ptr<Pool> the_pool = std::make_unique<Pool>(threads_from_environment());
  return the_pool;
}

}  // namespace

void set_threads(int threads) {
  if (threads < 1 || threads > 1024) fail("set_threads: expected 1 to 1024 threads, got ", threads);
  if (threads != pool()->threads()) pool() = std::make_unique<Pool>(threads);
}

int threads() { return pool()->threads(); }

void parallel_for(std::size_t pieces, const std::function<void(std::size_t)>& body) {
  if (pieces > 1 && pool()->threads() > 1 && pool()->run(pieces, body)) return;
  for (std::size_t piece = 0; piece < pieces; ++piece) body(piece);
}

}  // namespace thinwire
