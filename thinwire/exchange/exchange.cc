// exchange.cc: one thread per exchange runs the rounds of all buckets of a step.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/exchange/exchange.h"

#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "thinwire/core/error.h"
#include "thinwire/exchange/agreement.h"
#include "thinwire/exchange/participant.h"
#include "thinwire/exchange/setup.h"

namespace thinwire {

class Exchange::Engine final {
 public:
  Engine(Group& group, std::vector<Bucket> buckets, Compressors compressors,
         const std::string& description, const ExchangeOptions& options)
      : group_(group),
        server_(options.kind.is_server(group.rank(), group.size())),
        self_({group.rank(), group.size(), server_, true}, std::move(buckets),
              std::move(compressors), make_carrier(group), options.fuse_bytes),
        lanes_(self_.lanes()) {
    self_.tally().leave_out(
        [&] { check_agreement(group, lanes_.buckets(), description + options.str()); });
    thread_ = std::thread([this] { run(); });
  }

  ~Engine() {
    {
      const std::lock_guard lock(mutex_);
      closing_ = true;
    }
    wake_.notify_all();
    thread_.join();
  }
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  void submit(std::uint16_t bucket, TensorView gradient, Stream stream) {
    {
      const std::lock_guard lock(mutex_);
      if (error_) std::rethrow_exception(error_);
      lanes_.submit(bucket, gradient, stream);
      ++submitted_;
    }
    wake_.notify_all();
  }

  StepResult finish() {
    std::unique_lock lock(mutex_);
    if (error_) std::rethrow_exception(error_);
    lanes_.check_all_ready();
    done_.wait(lock, [this] { return result_.has_value() || error_ || lanes_.empty(); });
    if (error_) std::rethrow_exception(error_);
    const StepResult result = result_.value_or(StepResult{lanes_.step, false});
    result_.reset();
    submitted_ = 0;
    lanes_.end_step();
    if (lanes_.empty()) ++lanes_.step;
    return result;
  }

  StepResult serve() {
    if (!server_) {
      fail("rank ", group_.rank(),
           " works: submit() its gradients and finish(); serve() is for server ranks");
    }
    room_.resize(lanes_.size());
    for (std::size_t i = 0; i < lanes_.size(); ++i) {
      const Bucket& bucket = lanes_[i].bucket;
      room_[i].resize(bucket.elements() * size_of(bucket.dtype));
      submit(bucket.id, {room_[i].data(), bucket.elements(), bucket.dtype, {}}, {});
    }
    return finish();
  }

  Report report() const { return self_.tally().report(); }

  void visit_state(StateVisitor& visitor) {
    const std::lock_guard lock(mutex_);
    if (damaged_) std::rethrow_exception(error_);
    // After an error no step runs any more, and the memory is consistent.
    if (submitted_ != 0 && !error_)
      fail("rank ", group_.rank(), ": state was visited inside a step; call finish() first");
    lanes_.visit_state(visitor);
  }

  void observe(Observer observer) {
    const std::lock_guard lock(mutex_);
    if (submitted_ != 0)
      fail("rank ", group_.rank(), ": observer was set inside a step; call finish() first");
    self_.tally().observe(std::move(observer));
  }

 private:
  void run() {
    while (wait_for([this] { return submitted_ > 0 && !result_ && !error_; })) {
      try {
        const std::optional<StepResult> result = run_step();
        if (!result) return;
        const std::lock_guard lock(mutex_);
        if (closing_) return;
        result_ = result;
        ++lanes_.step;
      } catch (const std::exception& error) {
        give_up(error.what());
      } catch (...) {
        give_up("an exception that is no std::exception");
      }
      done_.notify_all();
    }
  }

  // Returns false when the exchange is being closed.
  template <typename Condition>
  bool wait_for(Condition condition) {
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [&] { return closing_ || condition(); });
    return !closing_;
  }

  // Returns nothing when the exchange is being closed.
  std::optional<StepResult> run_step() {
    // Before the first step and after a load, on every rank, whether it has loaded a state or not.
    if (!lanes_.agreed)
      self_.tally().leave_out([this] { check_same_step(group_, "step", lanes_.step); });
    lanes_.agreed = true;
    if (lanes_.needs_norm() && !wait_for([this] { return submitted_ == lanes_.size(); })) return {};
    self_.begin();
    for (std::size_t i = 0; i < lanes_.size(); ++i) {
      if (!wait_for([&] { return lanes_[i].ready; })) return {};
      self_.course().launch(i);
    }
    self_.course().complete();
    return self_.end();
  }

  // Called in an exception handler: the step and every later call end with this error.
  void give_up(const char* cause) {
    const std::string failures = self_.give_up();
    const std::lock_guard lock(mutex_);
    error_ = std::current_exception();
    damaged_ = self_.damaged();
    if (!failures.empty())
      error_ = std::make_exception_ptr(Error(text_of(cause, "; and ", failures)));
  }

  Group& group_;
  bool server_;
  std::vector<std::vector<std::byte>> room_;  // memory of a server for averages that nobody reads
  // While a step runs the thread owns it and its lanes, but for `ready`, which the mutex guards.
  Participant self_;
  Lanes& lanes_;

  std::mutex mutex_;
  std::condition_variable wake_, done_;
  std::size_t submitted_ = 0;
  std::optional<StepResult> result_;
  std::exception_ptr error_;
  bool damaged_ = false;  // taking the step back failed: the memory must not be saved
  bool closing_ = false;
  std::thread thread_;
};

std::string ExchangeOptions::str() const {
  return (kind.striped() ? ", exchange " + kind.str() : std::string()) +
         (fuse_bytes ? ", sums fused to " + std::to_string(fuse_bytes) + " bytes" : "");
}

Exchange::Exchange(Group& group, const std::vector<Bucket>& buckets, const Config& config,
                   const ExchangeOptions& options)
    : Exchange(group, buckets, std::vector<Config>(buckets.size(), config), options) {}

Exchange::Exchange(Group& group, const std::vector<Bucket>& buckets,
                   const std::vector<Config>& configs, const ExchangeOptions& options)
    : Exchange(group, buckets,
               make_compressors({group.rank(), group.size()}, buckets, configs, options.kind),
               join(configs), options) {}

Exchange::Exchange(Group& group, std::vector<Bucket> buckets,
                   std::vector<std::unique_ptr<Compressor>> compressors,
                   const std::string& description, const ExchangeOptions& options)
    : engine_(std::make_unique<Engine>(group, std::move(buckets), std::move(compressors),
                                       description, options)) {}

Exchange::~Exchange() = default;

void Exchange::submit(std::uint16_t bucket, TensorView gradient, Stream stream) {
  engine_->submit(bucket, gradient, stream);
}

StepResult Exchange::finish() { return engine_->finish(); }

StepResult Exchange::serve() { return engine_->serve(); }

Report Exchange::report() const { return engine_->report(); }

void Exchange::observe(Observer observer) { engine_->observe(std::move(observer)); }

void Exchange::visit_state(StateVisitor& visitor) { engine_->visit_state(visitor); }

}  // namespace thinwire
