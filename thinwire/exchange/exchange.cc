// exchange.cc: one thread per exchange runs the rounds of all buckets of a step.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/exchange/exchange.h"

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "thinwire/core/error.h"
#include "thinwire/exchange/agreement.h"
#include "thinwire/exchange/course.h"
#include "thinwire/exchange/setup.h"
#include "thinwire/kernels/norm.h"

namespace thinwire {

class Exchange::Engine final : private Stations {
 public:
  Engine(Group& group, std::vector<Bucket> buckets, Compressors compressors,
         const std::string& description, const ExchangeOptions& options)
      : group_(group),
        server_(options.kind.is_server(group.rank(), group.size())),
        stream_(Device{}),
        carrier_(make_carrier(group)),
        lanes_(group.rank(), std::move(buckets), std::move(compressors), stream_),
        course_(lanes_, *this, *carrier_, stream_, group.size(), Fuser(options.fuse_bytes, stream_),
                true),
        tally_([&group] { return group.traffic(); }) {
    tally_.leave_out(
        [&] { check_agreement(group, lanes_.buckets(), description + options.str()); });
    for (const Lane& lane : lanes_) remembers_ = remembers_ || lane.compressor->sound().has_value();
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
      lanes_.check_gradient(bucket, gradient);
      Lane& lane = lanes_[bucket];
      lane.gradient = gradient;
      lane.stream = stream;
      lane.ready = true;
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

  Report report() const { return tally_.report(); }

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
    tally_.observe(std::move(observer));
  }

 private:
  void run() {
    while (wait_for([this] { return submitted_ > 0 && !result_ && !error_; })) {
      try {
        run_step();
        const std::lock_guard lock(mutex_);
        if (closing_) return;
        result_ = StepResult{lanes_.step++, skipped_};
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

  // Returns early when the exchange is being closed.
  void run_step() {
    // Before the first step and after a load, on every rank, whether it has loaded a state or not.
    if (!lanes_.agreed) tally_.leave_out([this] { check_same_step(group_, "step", lanes_.step); });
    lanes_.agreed = true;
    squared_norm_ = 0;
    if (lanes_.needs_norm()) {
      if (!wait_for([this] { return submitted_ == lanes_.size(); })) return;
      squared_norm_ = norm_of_all();
    }
    skipped_ = false;
    sound_ = true;
    for (std::size_t i = 0; i < lanes_.size(); ++i) {
      if (!wait_for([&] { return lanes_[i].ready; })) return;
      course_.launch(i);
    }
    course_.complete();
    if (!sound_ && !skipped_) fail(lanes_.where(0), untold);
    if (skipped_) void_step();
    for (Lane& lane : lanes_) lane.encoded = false;
    tally_.count([this](Report& report) {
      ++report.steps;
      report.skipped += skipped_ ? 1 : 0;
    });
  }

  void void_step() {
    if (const std::string failures = take_back(); !failures.empty()) {
      const std::lock_guard lock(mutex_);
      damaged_ = true;
      throw Error(failures + not_taken);
    }
    for (const Lane& lane : lanes_) {
      const std::size_t bytes = lane.gradient.count * size_of(lane.gradient.dtype);
      std::fill_n(static_cast<std::byte*>(lane.gradient.data), bytes, std::byte{0});
    }
  }

  double norm_of_all() {
    double sum = 0;
    for (const Lane& lane : lanes_) {
      require_gradient(lane.gradient, lane.bucket, {}, lanes_.where(lane.bucket.id));
      sum += squared_norm(lane.gradient.dtype, lane.gradient.data, lane.gradient.count);
    }
    return sum;
  }

  Turn turn(const Lane& lane, int round) const {
    return {lanes_.step, round, lane.stream, squared_norm_};
  }

  Written encode(Lane& lane, int round, Bytes out) override {
    const Tally::Time start = Tally::now();
    if (round == 0) look_at(lane);
    const std::size_t bytes = lane.compressor->encode(turn(lane, round), lane.gradient, out);
    lane.encoded = true;  // only after encode(): if it throws, there is nothing to undo
    if (round == 0) sound_ = sound_ && lane.compressor->sound().value_or(true);
    tally_.stage("encode", lane.bucket.id, lanes_.step, start, &Report::encode_seconds);
    tally_.count([&](Report& report) {
      report.payload_bytes += bytes;
      if (round == 0 && !server_) report.dense_bytes += lane.gradient.count * sizeof(float);
    });
    return {bytes, lane.compressor->piece_sizes()};
  }

  // A scheme without memory does not check its gradient, but the memories of other buckets must
  // know.
  void look_at(const Lane& lane) {
    if (server_ || !remembers_ || lane.compressor->sound().has_value()) return;
    const TensorView& it = lane.gradient;
    sound_ = sound_ && std::isfinite(squared_norm(it.dtype, it.data, it.count));
  }

  void wait(Pending& pending) override {
    const Tally::Time start = Tally::now();
    pending.wait();
    const double seconds = std::chrono::duration<double>(Tally::now() - start).count();
    tally_.count([&](Report& report) { report.wait_seconds += seconds; });
  }

  void arrived(const Lane& lane, Tally::Time issued) override {
    tally_.stage("exchange", lane.bucket.id, lanes_.step, issued);
  }

  // Where this rank's gradient was beyond the limit, the step will be skipped: frames are still
  // checked, but the gradient is kept for forget().
  bool decode(Lane& lane, int round, const Inbox& inbox) override {
    TensorView average = lane.gradient;
    std::vector<std::byte> spare;
    if (!sound_ && lane.is_last(round) && !lane.compressor->leg(lanes_.step, round).in_place) {
      spare.resize(average.count * size_of(average.dtype));
      average.data = spare.data();
    }
    const Tally::Time start = Tally::now();
    const Status status = lane.compressor->decode(turn(lane, round), inbox, average);
    tally_.stage("decode", lane.bucket.id, lanes_.step, start, &Report::decode_seconds);
    if (status.ok()) return true;
    if (status.code != Code::skipped)
      throw Error(round_fault(lanes_.where(lane.bucket.id), inbox.culprit, status.what));
    skipped_ = true;  // all ranks see the same, so they all leave out the further rounds
    return false;
  }

  // Takes the step back: every memory gets back what it sent. Where this rank's own gradient was
  // beyond the limit, no memory keeps anything of it. It returns failures as text and never throws,
  // because it runs while an error is being handled.
  std::string take_back() {
    std::string failures;
    for (Lane& lane : lanes_) {
      if (!std::exchange(lane.encoded, false)) continue;
      try {
        const Turn turn{lanes_.step, 0, lane.stream, 0};
        if (sound_) lane.compressor->undo(turn);
        if (!sound_) lane.compressor->forget(turn, lane.gradient);
      } catch (const std::exception& error) {
        failures += text_of(failures.empty() ? "" : "; ", lanes_.where(lane.bucket.id),
                            ": what was sent could not be put back: ", error.what());
      }
    }
    return failures;
  }

  // Called in an exception handler: the step and every later call end with this error.
  void give_up(const char* cause) {
    course_.abandon();
    const std::string failures = take_back();
    const std::lock_guard lock(mutex_);
    error_ = std::current_exception();
    if (failures.empty()) return;
    damaged_ = true;
    error_ = std::make_exception_ptr(Error(text_of(cause, "; and ", failures)));
  }

  Group& group_;
  bool server_;
  std::vector<std::vector<std::byte>> room_;  // memory of a server for averages that nobody reads
  OwnStream stream_;                          // of the CPU: everything is done at once
  std::unique_ptr<Carrier> carrier_;
  // While a step runs its thread owns the lanes, but for `ready`, which the mutex guards.
  Lanes lanes_;
  Course course_;
  Tally tally_;
  bool remembers_ = false;   // some scheme has a memory
  double squared_norm_ = 0;  // of this step
  bool sound_ = true;        // so far, this rank's gradients of the step are within the limit
  bool skipped_ = false;     // so far

  mutable std::mutex mutex_;
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
