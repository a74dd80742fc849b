// exchange.cc: one thread per exchange runs the rounds of all buckets of a step.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/exchange/exchange.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "thinwire/core/error.h"
#include "thinwire/exchange/agreement.h"
#include "thinwire/exchange/fuse.h"
#include "thinwire/exchange/passage.h"
#include "thinwire/exchange/setup.h"
#include "thinwire/kernels/norm.h"

namespace thinwire {
namespace {

// Collectives in flight at once. Two keep the link busy while a third bucket is encoded; more would
// only need more memory.
constexpr std::size_t depth = 2;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

class Exchange::Engine {
 public:
  Engine(Group& group, std::vector<Bucket> buckets,
         std::vector<std::unique_ptr<Compressor>> compressors, const std::string& description,
         const ExchangeOptions& options)
      : group_(group),
        fuser_(options.fuse_bytes),
        server_(options.kind.is_server(group.rank(), group.size())) {
    check_buckets(buckets, compressors);
    for (std::size_t i = 0; i < buckets.size(); ++i) {
      needs_norm_ = needs_norm_ || compressors[i]->needs_norm();
      remembers_ = remembers_ || compressors[i]->sound().has_value();
    }
    check_agreement(group, buckets, description + options.str());
    for (std::size_t i = 0; i < buckets.size(); ++i) {
      lanes_.push_back({std::move(buckets[i]), std::move(compressors[i])});
    }
    before_ = group.traffic();
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
      if (bucket >= lanes_.size()) {
        fail(where(bucket), ": there are ", lanes_.size(), " buckets, numbered from 0");
      }
      Lane& lane = lanes_[bucket];
      if (lane.ready) fail(where(bucket), ": submitted twice in one step; call finish() first");
      if (gradient.count != lane.bucket.elements()) {
        fail(where(bucket), ": expected ", lane.bucket.elements(), " elements, got ",
             gradient.count);
      }
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
    for (const Lane& lane : lanes_) {
      if (!lane.ready)
        fail(where(lane.bucket.id),
             ": not submitted in this step; submit every bucket before finish()");
    }
    done_.wait(lock, [this] { return result_.has_value() || error_ || lanes_.empty(); });
    if (error_) std::rethrow_exception(error_);
    const StepResult result = result_.value_or(StepResult{step_, false});
    result_.reset();
    submitted_ = 0;
    for (Lane& lane : lanes_) lane.ready = false;
    if (lanes_.empty()) ++step_;
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

  Report report() const {
    const std::lock_guard lock(mutex_);
    Report report = report_;
    const Traffic now = group_.traffic();
    report.traffic = {now.sent - before_.sent, now.received - before_.received,
                      now.collectives - before_.collectives};
    return report;
  }

  void visit_state(StateVisitor& visitor) {
    const std::lock_guard lock(mutex_);
    if (damaged_) std::rethrow_exception(error_);
    // After an error no step runs any more, and the memory is consistent.
    if (submitted_ != 0 && !error_)
      fail("rank ", group_.rank(), ": state was visited inside a step; call finish() first");
    const std::uint64_t before = step_;
    visit_step(visitor, step_);
    agreed_ = agreed_ && step_ == before;
    for (Lane& lane : lanes_) lane.compressor->visit_state(visitor);
  }

  void observe(Observer observer) {
    const std::lock_guard lock(mutex_);
    if (submitted_ != 0)
      fail("rank ", group_.rank(), ": observer was set inside a step; call finish() first");
    observer_ = std::move(observer);
  }

 private:
  using Time = std::chrono::steady_clock::time_point;

  // One bucket and its buffers. The exchange's thread owns them while a step runs.
  struct Lane {
    Bucket bucket;
    std::unique_ptr<Compressor> compressor;
    TensorView gradient{};
    Stream stream{};
    bool ready = false;    // submitted; guarded by mutex_
    bool encoded = false;  // its memory contains this step's gradient
    Passage passage{};
  };

  struct Flight {
    std::size_t lane = 0;
    int round = 0;
    Pending pending;
    Time start{};
    Parcel* parcel = nullptr;  // for several fused buckets; `lane` is the first of them
  };

  // The result of a round that is not decoded yet.
  struct Arrival {
    std::size_t lane = 0;
    int round = 0;
    Inbox inbox;
  };

  std::string where(std::size_t bucket) const { return place_of(group_.rank(), step_, bucket); }

  void run() {
    while (wait_for([this] { return submitted_ > 0 && !result_ && !error_; })) {
      try {
        const bool skipped = run_step();
        const std::lock_guard lock(mutex_);
        if (closing_) return;
        result_ = StepResult{step_++, skipped};
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

  // Runs before the first step and after a load, on every rank, whether it has loaded a state or
  // not. report() does not count its traffic.
  void agree_on_step() {
    if (agreed_) return;
    const Traffic start = group_.traffic();
    check_same_step(group_, "step", step_);
    const Traffic end = group_.traffic();
    const std::lock_guard lock(mutex_);
    before_.sent += end.sent - start.sent;
    before_.received += end.received - start.received;
    before_.collectives += end.collectives - start.collectives;
    agreed_ = true;
  }

  bool run_step() {
    agree_on_step();
    double squared_norm = 0;
    if (needs_norm_) {
      if (!wait_for([this] { return submitted_ == lanes_.size(); })) return false;
      squared_norm = norm_of_all();
    }
    bool skipped = false;
    sound_ = true;
    arrivals_.clear();
    std::deque<Flight> flights;
    for (std::size_t i = 0; i < lanes_.size(); ++i) {
      if (!wait_for([&] { return lanes_[i].ready; })) return false;
      launch(flights, i, 0, squared_norm);
      if (flights.size() > depth) advance(flights, squared_norm, skipped);
    }
    // Only now it is known whether this rank's gradients are sound, so averages may replace them.
    // This starts no collective, so it can overlap with the last ones.
    for (flush(flights); !flights.empty() || !arrivals_.empty(); flush(flights)) {
      if (!arrivals_.empty() && may_wait(flights)) {
        finish_arrival(squared_norm, skipped);
      } else {
        advance(flights, squared_norm, skipped);
      }
    }
    if (!sound_ && !skipped)
      fail(where(0), ": a scheme found its gradient beyond the limit, but did not tell the others");
    if (skipped) {
      if (const std::string failures = take_back(); !failures.empty()) {
        const std::lock_guard lock(mutex_);
        damaged_ = true;
        fail(failures, "; the step was not taken, restart from the last checkpoint");
      }
      for (const Lane& lane : lanes_) {
        const std::size_t bytes = lane.gradient.count * size_of(lane.gradient.dtype);
        std::fill_n(static_cast<std::byte*>(lane.gradient.data), bytes, std::byte{0});
      }
    }
    for (Lane& lane : lanes_) lane.encoded = false;
    for (Parcel* parcel : std::exchange(unpacked_, {})) fuser_.release(parcel);
    const std::lock_guard lock(mutex_);
    ++report_.steps;
    report_.skipped += skipped ? 1 : 0;
    return skipped;
  }

  bool is_last(std::size_t lane, int round) const {
    return round + 1 == lanes_[lane].compressor->rounds();
  }

  // Whether the oldest collective can wait: it is a last round, or it has not arrived yet.
  bool may_wait(std::deque<Flight>& flights) const {
    if (flights.empty()) return true;
    Flight& oldest = flights.front();
    return is_last(oldest.lane, oldest.round) || !oldest.pending.done();
  }

  double norm_of_all() {
    double sum = 0;
    for (const Lane& lane : lanes_) {
      require_gradient(lane.gradient, lane.bucket, {}, where(lane.bucket.id));
      sum += squared_norm(lane.gradient.dtype, lane.gradient.data, lane.gradient.count);
    }
    return sum;
  }

  // Encodes a round of a bucket, and starts its collective or adds it to a parcel.
  void launch(std::deque<Flight>& flights, std::size_t index, int round, double squared_norm) {
    Lane& lane = lanes_[index];
    const Turn turn{step_, round, lane.stream, squared_norm};
    const Leg leg = lane.compressor->leg(step_, round);
    const Bytes out = lane.passage.begin(leg, group_.size(), lane.gradient.data);
    const auto start = std::chrono::steady_clock::now();
    if (round == 0) look_at(lane);
    const std::size_t bytes = lane.compressor->encode(turn, lane.gradient, out);
    lane.encoded = true;  // only after encode(): if it throws, there is nothing to undo
    if (round == 0) sound_ = sound_ && lane.compressor->sound().value_or(true);
    count(&Report::encode_seconds, seconds_since(start));
    tell("encode", lane, start);
    {
      const std::lock_guard lock(mutex_);
      report_.payload_bytes += bytes;
      if (round == 0 && !server_) report_.dense_bytes += lane.gradient.count * sizeof(float);
    }
    if (fuser_.takes(leg)) {
      if (Parcel* full = fuser_.add(index, round, leg, out)) depart(flights, full);
      return;
    }
    const auto issued = std::chrono::steady_clock::now();
    Pending pending =
        lane.passage.start(group_, bytes, lane.compressor->piece_sizes(), lane.stream);
    flights.push_back({index, round, std::move(pending), issued});
  }

  // A scheme without memory does not check its gradient, but the memories of other buckets must
  // know.
  void look_at(const Lane& lane) {
    if (server_ || !remembers_ || lane.compressor->sound().has_value()) return;
    const TensorView& it = lane.gradient;
    sound_ = sound_ && std::isfinite(thinwire::squared_norm(it.dtype, it.data, it.count));
  }

  void depart(std::deque<Flight>& flights, Parcel* parcel) {
    const std::size_t index = parcel->riders.front().lane;
    const auto issued = std::chrono::steady_clock::now();
    const Leg& leg = parcel->leg;
    Pending pending =
        group_.all_reduce(parcel->data, leg.dtype, reduce_op(leg), lanes_[index].stream);
    flights.push_back({index, parcel->round, std::move(pending), issued, parcel});
  }

  // All first rounds are encoded: sends parcels that no other bucket can join.
  void flush(std::deque<Flight>& flights) {
    for (int round = fuser_.lowest_open(); round >= 0; round = fuser_.lowest_open()) {
      const auto earlier = [&](const Flight& flight) { return flight.round < round; };
      if (std::any_of(flights.begin(), flights.end(), earlier)) return;
      depart(flights, fuser_.close(round));
    }
  }

  // Completes the oldest collective. A bucket with further rounds goes to the back of the queue.
  void advance(std::deque<Flight>& flights, double squared_norm, bool& skipped) {
    Flight flight = std::move(flights.front());
    flights.pop_front();
    const auto start = std::chrono::steady_clock::now();
    flight.pending.wait();
    count(&Report::wait_seconds, seconds_since(start));
    if (flight.parcel) return unpack(flights, flight, squared_norm, skipped);
    Lane& lane = lanes_[flight.lane];
    tell("exchange", lane, flight.start);
    arrive(flights, {flight.lane, flight.round, lane.passage.inbox()}, squared_norm, skipped);
  }

  // Gives each bucket of a parcel its own bytes.
  void unpack(std::deque<Flight>& flights, const Flight& flight, double squared_norm,
              bool& skipped) {
    for (const Parcel::Rider& rider : flight.parcel->riders) {
      Lane& lane = lanes_[rider.lane];
      tell("exchange", lane, flight.start);
      Inbox inbox;
      inbox.data = ConstBytes(flight.parcel->data).subspan(rider.offset, rider.leg.bytes);
      if (rider.leg.in_place) {
        std::copy(inbox.data.begin(), inbox.data.end(),
                  static_cast<std::byte*>(lane.gradient.data));
      }
      arrive(flights, {rider.lane, flight.round, inbox}, squared_norm, skipped);
    }
    unpacked_.push_back(flight.parcel);
  }

  // Last rounds wait until all buckets are encoded. Other rounds are decoded at once, and the next
  // round is started.
  void arrive(std::deque<Flight>& flights, const Arrival& arrival, double squared_norm,
              bool& skipped) {
    Lane& lane = lanes_[arrival.lane];
    if (is_last(arrival.lane, arrival.round)) {
      arrivals_.push_back(arrival);
      return;
    }
    if (decode(lane, arrival, lane.gradient, squared_norm)) {
      launch(flights, arrival.lane, arrival.round + 1, squared_norm);
    } else {
      skipped = true;  // all ranks see the same, so they all leave out the further rounds
    }
  }

  // Decodes the oldest arrival into an average. Where this rank's gradient was beyond the limit,
  // the step will be skipped: frames are still checked, but the gradient is kept for forget().
  void finish_arrival(double squared_norm, bool& skipped) {
    const Arrival arrival = arrivals_.front();
    arrivals_.pop_front();
    Lane& lane = lanes_[arrival.lane];
    TensorView average = lane.gradient;
    const bool in_place = lane.compressor->leg(step_, arrival.round).in_place;
    std::vector<std::byte> spare;
    if (!sound_ && !in_place) {
      spare.resize(average.count * size_of(average.dtype));
      average.data = spare.data();
    }
    if (!decode(lane, arrival, average, squared_norm)) skipped = true;
  }

  // Returns false when the step must be skipped.
  bool decode(Lane& lane, const Arrival& arrival, TensorView average, double squared_norm) {
    const auto start = std::chrono::steady_clock::now();
    const Turn turn{step_, arrival.round, lane.stream, squared_norm};
    const Inbox& inbox = arrival.inbox;
    const Status status = lane.compressor->decode(turn, inbox, average);
    count(&Report::decode_seconds, seconds_since(start));
    tell("decode", lane, start);
    if (status.ok() || status.code == Code::skipped) return status.ok();
    fail(where(lane.bucket.id),
         inbox.culprit < 0 ? "" : ", bytes from rank " + std::to_string(inbox.culprit), ": ",
         status.what, "; the step was not taken, restart from the last checkpoint");
  }

  // Takes the step back: every memory gets back what it sent. Where this rank's own gradient was
  // beyond the limit, no memory keeps anything of it. It returns failures as text and never throws,
  // because it runs while an error is being handled.
  std::string take_back() {
    std::string failures;
    for (Lane& lane : lanes_) {
      if (!lane.encoded) continue;
      lane.encoded = false;
      try {
        const Turn turn{step_, 0, lane.stream, 0};
        if (sound_) lane.compressor->undo(turn);
        if (!sound_) lane.compressor->forget(turn, lane.gradient);
      } catch (const std::exception& error) {
        failures += text_of(failures.empty() ? "" : "; ", where(lane.bucket.id),
                            ": what was sent could not be put back: ", error.what());
      }
    }
    return failures;
  }

  // Called in an exception handler: the step and every later call end with this error.
  void give_up(const char* cause) {
    const std::string failures = take_back();
    const std::lock_guard lock(mutex_);
    error_ = std::current_exception();
    if (failures.empty()) return;
    damaged_ = true;
    error_ = std::make_exception_ptr(Error(text_of(cause, "; and ", failures)));
  }

  // No lock is needed: the thread starts a step only after a submit(), which follows observe().
  void tell(const char* stage, const Lane& lane, Time begin) const {
    if (!observer_) return;
    observer_({stage, lane.bucket.id, begin, std::chrono::steady_clock::now(), step_});
  }

  void count(double Report::*where, double seconds) {
    const std::lock_guard lock(mutex_);
    report_.*where += seconds;
  }

  Group& group_;
  Fuser fuser_;
  bool server_;
  std::vector<std::vector<std::byte>> room_;  // memory of a server for averages that nobody reads
  Traffic before_;
  std::vector<Lane> lanes_;
  bool needs_norm_ = false;
  bool remembers_ = false;         // some scheme has a memory
  bool sound_ = true;              // so far, this rank's gradients of the step are within the limit
  std::vector<Parcel*> unpacked_;  // parcels whose bytes may still be needed
  std::deque<Arrival> arrivals_;   // not decoded yet
  std::uint64_t step_ = 0;
  bool agreed_ = false;  // all ranks are at this step

  mutable std::mutex mutex_;
  std::condition_variable wake_, done_;
  std::size_t submitted_ = 0;
  std::optional<StepResult> result_;
  std::exception_ptr error_;
  bool damaged_ = false;  // taking the step back failed: the memory must not be saved
  bool closing_ = false;
  Report report_;
  Observer observer_;
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
