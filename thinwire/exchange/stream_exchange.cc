// stream_exchange.cc: a step as work in streams, and the receipt that tells what became of it.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/exchange/stream_exchange.h"

#include <algorithm>
#include <cstddef>
#include <exception>
#include <utility>

#include "thinwire/core/error.h"
#include "thinwire/exchange/agreement.h"
#include "thinwire/exchange/course.h"
#include "thinwire/exchange/receipt.h"
#include "thinwire/exchange/setup.h"
#include "thinwire/exchange/stream_norm.h"
#include "thinwire/kernels/norm.h"

namespace thinwire {
namespace {

// Where a rider starts in a fused sum, for kernels that read several elements at once.
constexpr std::size_t rider_alignment = 64;

std::unique_ptr<Carrier> carrier_of(const StreamLink& link, const OwnStream& stream) {
  return link.data ? make_carrier(*link.data, stream) : make_carrier(link.group, stream);
}

}  // namespace

class StreamExchange::Engine final : private Stations {
 public:
  Engine(const StreamLink& link, std::vector<Bucket> buckets, Compressors compressors,
         const std::string& description, const ExchangeOptions& options)
      : link_(link),
        server_(options.kind.is_server(link.group.rank(), link.group.size())),
        stream_(link.device),
        lanes_(link.group.rank(), std::move(buckets), shared(std::move(compressors)), stream_),
        receipt_(stream_, lanes_, link.group.size()),
        carrier_(carrier_of(link, stream_)),
        course_(lanes_, *this, *carrier_, stream_, link.group.size(),
                Fuser(options.fuse_bytes, stream_, rider_alignment), !carrier_->waits()),
        tally_([this] { return carrier_->traffic(); }) {
    const char* const road = carrier_->waits() ? ", by the host" : ", by streams";
    tally_.leave_out(
        [&] { check_agreement(link.group, lanes_.buckets(), description + options.str() + road); });
    make_room_for_norms();
  }

  ~Engine() {
    try {
      const DeviceScope scope(link_.device);
      if (!broken_) stream_.wait();
    } catch (const std::exception&) {  // the device is lost: so is its work
    }
  }
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  Stream stream() const { return stream_.get(); }

  const Verdict* verdict() const { return receipt_.verdict(); }

  void submit(std::uint16_t bucket, const TensorView& gradient, Stream stream) {
    const DeviceScope scope(link_.device);
    if (error_) std::rethrow_exception(error_);
    lanes_.check_gradient(bucket, gradient);
    if (gradient.device != link_.device)
      fail(lanes_.where(bucket), ": the gradient is not on the device of this exchange");
    if (const DType type = lanes_[bucket].bucket.dtype; gradient.dtype != type)
      fail(lanes_.where(bucket), ": expected ", name_of(type), " elements, got ",
           name_of(gradient.dtype));
    try {
      result();  // of the step before
      if (submitted_ == 0) begin();
      Lane& lane = lanes_[bucket];
      lane.gradient = gradient;
      lane.stream = stream_.get();
      lane.ready = true;
      ++submitted_;
      order(lane.given, stream, stream_.get());
      if (lanes_.needs_norm())
        enqueue_norm(gradient, scratch_.as<double>(), norm(bucket), stream_.get());
      launch_ready();
    } catch (const std::exception& error) {
      give_up(error.what());
      throw;
    }
  }

  void finish(Stream stream, float fill) {
    const DeviceScope scope(link_.device);
    if (error_) std::rethrow_exception(error_);
    lanes_.check_all_ready();
    try {
      if (pending_) outcome();  // its receipt is about to be written again
      if (lanes_.empty()) begin();
      course_.complete();
      for (Lane& lane : lanes_) lane.compressor->conclude(turn(lane, 0), lane.gradient, fill);
      receipt_.close(stream);
    } catch (const std::exception& error) {
      give_up(error.what());
      throw;
    }
    lanes_.end_step();
    submitted_ = next_ = 0;
    pending_ = lanes_.step++;
  }

  std::optional<StepResult> result() {
    const DeviceScope scope(link_.device);
    if (error_) std::rethrow_exception(error_);
    if (pending_ && receipt_.done()) read_receipt();
    return pending_ ? std::nullopt : last_;
  }

  StepResult outcome() {
    const DeviceScope scope(link_.device);
    if (error_) std::rethrow_exception(error_);
    if (pending_) {
      if (!receipt_.await(link_.timeout)) lose_patience();
      read_receipt();
    }
    return last_.value_or(StepResult{});
  }

  Report report() {
    if (pending_) outcome();
    return tally_.report();
  }

  void visit_state(StateVisitor& visitor) {
    if (pending_ && !error_) outcome();
    if (damaged_) std::rethrow_exception(error_);
    if (submitted_ != 0 && !error_)
      fail("rank ", rank(), ": state was visited inside a step; call finish() first");
    const DeviceScope scope(link_.device);
    stream_.wait();
    lanes_.visit_state(visitor);
  }

 private:
  int rank() const { return link_.group.rank(); }

  double* norm(std::size_t bucket) const { return norms_.as<double>() + bucket; }

  Turn turn(const Lane& lane, int round) const {
    Turn turn{lanes_.step, round, stream_.get()};
    turn.verdict = receipt_.verdict();
    turn.written = receipt_.written(lane.bucket.id, round);
    turn.norm = lanes_.needs_norm() ? norm(lanes_.size()) : nullptr;
    return turn;
  }

  void make_room_for_norms() {
    if (!lanes_.needs_norm()) return;
    std::size_t most = 0;
    for (const Lane& lane : lanes_) most = std::max(most, norm_scratch(lane.bucket.elements()));
    const Place place = place_on(link_.device);
    scratch_ = Buffer(place, most * sizeof(double), link_.device);
    norms_ = Buffer(place, (lanes_.size() + 1) * sizeof(double), link_.device);
  }

  // Later work of `to` runs after what `from` has now.
  static void order(Event& event, Stream from, Stream to) {
    if (from.handle == to.handle) return;
    event.record(from);
    event.hold_back(to);
  }

  void begin() {
    if (!lanes_.agreed)
      tally_.leave_out([this] { check_same_step(link_.group, "step", lanes_.step); });
    lanes_.agreed = true;
    receipt_.clear();
  }

  // Encodes and sends all buckets whose turn has come.
  void launch_ready() {
    if (lanes_.needs_norm()) {
      if (submitted_ < lanes_.size()) return;
      enqueue_sum(norm(0), lanes_.size(), norm(lanes_.size()), link_.device, stream_.get());
    }
    while (next_ < lanes_.size() && lanes_[next_].ready) course_.launch(next_++);
  }

  Written encode(Lane& lane, int round, Bytes out) override {
    const Turn now = turn(lane, round);
    const std::size_t bytes = lane.compressor->encode(now, lane.gradient, out);
    lane.encoded = true;
    // Of a gather and a scatter the receipt tells.
    const bool told = lane.passages[static_cast<std::size_t>(round)].has_slots();
    tally_.count([&](Report& report) {
      report.payload_bytes += told ? 0 : bytes;
      if (round == 0 && !server_) report.dense_bytes += lane.gradient.count * sizeof(float);
    });
    return {bytes, {}, now.written};
  }

  // The host does not know whether the step is void, so every round runs.
  bool decode(Lane& lane, int round, const Inbox& inbox) override {
    const Status status = lane.compressor->decode(turn(lane, round), inbox, lane.gradient);
    if (!status.ok()) throw Error(round_fault(lanes_.where(lane.bucket.id), -1, status.what));
    return true;
  }

  void arrived(const Lane&, Tally::Time) override {}

  // The roll call of the host's group names who is silent.
  [[noreturn]] void lose_patience() {
    damaged_ = broken_ = true;
    const std::string start =
        text_of("rank ", rank(), ", step ", *pending_,
                ": the device has not ended the step within ", link_.timeout.count(), " ms");
    try {
      link_.group.barrier().wait();
      error_ = std::make_exception_ptr(
          Error(start + " although all ranks are there; if they are only slow, raise the limit"));
    } catch (const std::exception& error) {
      error_ = std::make_exception_ptr(Error(start + ": " + error.what()));
    }
    carrier_->break_off();
    std::rethrow_exception(error_);
  }

  void read_receipt() {
    const Verdict found = receipt_.found();
    const std::uint64_t step = *std::exchange(pending_, std::nullopt);
    if (found.fault != 0) {
      const auto bucket = static_cast<std::size_t>(bucket_of(found.fault));
      remember(round_fault(place_of(rank(), step, bucket), rank_of(found.fault),
                           explain(code_of(found.fault))));
    }
    if (found.unsound != 0 && found.skipped == 0) remember(place_of(rank(), step, 0) + untold);
    tally_.count([&](Report& report) {
      report.payload_bytes += receipt_.bytes();
      ++report.steps;
      report.skipped += found.skipped != 0 ? 1 : 0;
    });
    last_ = StepResult{step, found.skipped != 0};
  }

  [[noreturn]] void remember(const std::string& text) {
    error_ = std::make_exception_ptr(Error(text));
    std::rethrow_exception(error_);
  }

  // Called in an exception handler: the step and every later call end with this error. As in an
  // Exchange every memory gets back what it sent: the verdict says that the step is not taken.
  void give_up(const char* cause) {
    error_ = std::current_exception();
    course_.abandon();
    try {
      receipt_.raise();
      for (Lane& lane : lanes_) {
        if (std::exchange(lane.encoded, false))
          lane.compressor->conclude(turn(lane, 0), lane.gradient, 0);
      }
      stream_.wait();
    } catch (const std::exception& error) {
      damaged_ = true;
      error_ = std::make_exception_ptr(
          Error(text_of(cause, "; and what was sent could not be put back: ", error.what())));
    }
  }

  const StreamLink link_;
  const bool server_;
  OwnStream stream_;
  Lanes lanes_;
  Receipt receipt_;
  std::unique_ptr<Carrier> carrier_;
  Course course_;
  Tally tally_;
  Buffer scratch_, norms_;  // norms by bucket, then that of all

  std::size_t submitted_ = 0, next_ = 0;  // next_: the bucket to be sent next
  std::optional<std::uint64_t> pending_;  // the finished step whose receipt was not read
  std::optional<StepResult> last_;
  std::exception_ptr error_;
  bool damaged_ = false;  // the memory must not be saved
  bool broken_ = false;   // the device may never be idle again
};

StreamExchange::StreamExchange(const StreamLink& link, const std::vector<Bucket>& buckets,
                               const Config& config, const ExchangeOptions& options)
    : StreamExchange(
          link, buckets,
          make_stream_compressors(
              {.rank = link.group.rank(), .world = link.group.size(), .device = link.device},
              buckets, config, options.kind),
          config.str(), options) {}

StreamExchange::StreamExchange(const StreamLink& link, std::vector<Bucket> buckets,
                               std::vector<std::unique_ptr<Compressor>> compressors,
                               const std::string& description, const ExchangeOptions& options)
    : engine_(std::make_unique<Engine>(link, std::move(buckets), std::move(compressors),
                                       description, options)) {}

StreamExchange::~StreamExchange() = default;

Stream StreamExchange::stream() const { return engine_->stream(); }

const Verdict* StreamExchange::verdict() const { return engine_->verdict(); }

void StreamExchange::submit(std::uint16_t bucket, TensorView gradient, Stream stream) {
  engine_->submit(bucket, gradient, stream);
}

void StreamExchange::finish(Stream stream, float fill) { engine_->finish(stream, fill); }

StepResult StreamExchange::outcome() { return engine_->outcome(); }

std::optional<StepResult> StreamExchange::result() { return engine_->result(); }

Report StreamExchange::report() { return engine_->report(); }

void StreamExchange::visit_state(StateVisitor& visitor) { engine_->visit_state(visitor); }

}  // namespace thinwire
