// stream_exchange.cc: a step as work in streams, and the receipt that tells what became of it.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/exchange/stream_exchange.h"

#include <algorithm>
#include <cstddef>
#include <deque>
#include <exception>
#include <utility>

#include "thinwire/core/buffer.h"
#include "thinwire/core/error.h"
#include "thinwire/exchange/agreement.h"
#include "thinwire/exchange/as_device.h"
#include "thinwire/exchange/carrier.h"
#include "thinwire/exchange/receipt.h"
#include "thinwire/exchange/setup.h"
#include "thinwire/exchange/stream_norm.h"
#include "thinwire/kernels/norm.h"

namespace thinwire {
namespace {

constexpr const char* not_taken = "; the step was not taken, restart from the last checkpoint";

Compressors compressors_on(const StreamLink& link, const std::vector<Bucket>& buckets,
                           const Config& config, const ExchangeOptions& options) {
  if (options.kind.striped())
    fail("exchange '", options.kind.str(), "' does not run on CUDA yet; use auto");
  if (options.fuse_bytes != 0) fail("fused sums do not run on CUDA yet; leave fusing off");
  Site site{link.group.rank(), link.group.size()};
  site.device = link.device;
  Compressors compressors =
      make_compressors(site, buckets, std::vector<Config>(buckets.size(), config), options.kind);
  if (link.device.kind == Device::Kind::cpu)
    for (std::size_t i = 0; i < compressors.size(); ++i)
      compressors[i] = as_device(std::move(compressors[i]), buckets[i].id);
  return compressors;
}

}  // namespace

class StreamExchange::Engine {
 public:
  Engine(const StreamLink& link, std::vector<Bucket> buckets, Compressors compressors,
         const std::string& description)
      : link_(link),
        place_(place_on(link.device)),
        stream_(link.device),
        receipt_(stream_, buckets.size()) {
    const DeviceScope scope(link_.device);
    check_buckets(buckets, compressors);
    check_agreement(link_.group, buckets, description);
    for (std::size_t i = 0; i < buckets.size(); ++i) {
      if (compressors[i]->rounds() > 1)
        fail("bucket ", i, ": a scheme of several rounds does not run on CUDA yet");
      needs_norm_ = needs_norm_ || compressors[i]->needs_norm();
      lanes_.emplace_back(std::move(buckets[i]), std::move(compressors[i]), link_.device);
    }
    make_room_for_norms();
    carrier_ = link_.data ? make_carrier(*link_.data, stream_, lanes_.size())
                          : make_carrier(link_.group, stream_, lanes_.size());
    before_ = carrier_->traffic();
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
    check(bucket, gradient);
    try {
      result();  // of the step before
      if (submitted_ == 0) begin();
      Lane& lane = lanes_[bucket];
      lane.gradient = gradient;
      lane.ready = true;
      ++submitted_;
      order(lane.given, stream, stream_.get());
      if (needs_norm_) enqueue_norm(gradient, scratch_.as<double>(), norm(bucket), stream_.get());
      launch_ready();
    } catch (const std::exception& error) {
      give_up(error.what());
      throw;
    }
  }

  void finish(Stream stream, float fill) {
    const DeviceScope scope(link_.device);
    if (error_) std::rethrow_exception(error_);
    for (const Lane& lane : lanes_) {
      if (!lane.ready)
        fail(where(lane.bucket.id),
             ": not submitted in this step; submit every bucket before finish()");
    }
    try {
      if (pending_) outcome();  // its receipt is about to be written again
      if (lanes_.empty()) begin();
      for (std::size_t i = 0; i < lanes_.size(); ++i) {
        carrier_->receive(i);
        decode(lanes_[i]);
      }
      for (Lane& lane : lanes_) lane.compressor->conclude(turn(lane), lane.gradient, fill);
      receipt_.close(stream);
    } catch (const std::exception& error) {
      give_up(error.what());
      throw;
    }
    for (Lane& lane : lanes_) lane.ready = lane.encoded = false;
    submitted_ = next_ = 0;
    pending_ = step_++;
  }

  std::optional<StepResult> result() {
    if (error_) std::rethrow_exception(error_);
    if (pending_ && receipt_.done()) read_receipt();
    return pending_ ? std::nullopt : last_;
  }

  StepResult outcome() {
    if (error_) std::rethrow_exception(error_);
    if (pending_) {
      if (!receipt_.await(link_.timeout)) lose_patience();
      read_receipt();
    }
    return last_.value_or(StepResult{});
  }

  Report report() {
    if (pending_) outcome();
    Report report = report_;
    const Traffic now = carrier_->traffic();
    report.traffic = {now.sent - before_.sent, now.received - before_.received,
                      now.collectives - before_.collectives};
    return report;
  }

  void visit_state(StateVisitor& visitor) {
    if (pending_ && !error_) outcome();
    if (damaged_) std::rethrow_exception(error_);
    if (submitted_ != 0 && !error_)
      fail("rank ", rank(), ": state was visited inside a step; call finish() first");
    const DeviceScope scope(link_.device);
    stream_.wait();
    const std::uint64_t before = step_;
    visit_step(visitor, step_);
    agreed_ = agreed_ && step_ == before;
    for (Lane& lane : lanes_) lane.compressor->visit_state(visitor);
  }

 private:
  // One bucket and its buffers on the device.
  struct Lane {
    Lane(Bucket which, std::unique_ptr<Compressor> scheme, Device device)
        : bucket(std::move(which)), compressor(std::move(scheme)), given(device) {}

    Bucket bucket;
    std::unique_ptr<Compressor> compressor;
    TensorView gradient{};
    Event given;           // the caller's stream has computed the gradient
    bool ready = false;    // submitted
    bool encoded = false;  // its memory contains this step's gradient
    Cargo cargo{};
    Buffer payload{}, slots{};
  };

  int rank() const { return link_.group.rank(); }
  std::string where(std::size_t bucket) const { return place_of(rank(), step_, bucket); }

  double* norm(std::size_t bucket) const { return norms_.as<double>() + bucket; }

  Turn turn(const Lane& lane) const {
    Turn turn{step_, 0, stream_.get()};
    turn.verdict = receipt_.verdict();
    turn.written = receipt_.written(lane.bucket.id);
    turn.norm = needs_norm_ ? norm(lanes_.size()) : nullptr;
    return turn;
  }

  void make_room_for_norms() {
    if (!needs_norm_) return;
    std::size_t most = 0;
    for (const Lane& lane : lanes_) most = std::max(most, norm_scratch(lane.bucket.elements()));
    scratch_ = Buffer(place_, most * sizeof(double), link_.device);
    norms_ = Buffer(place_, (lanes_.size() + 1) * sizeof(double), link_.device);
  }

  void check(std::size_t bucket, const TensorView& gradient) const {
    if (bucket >= lanes_.size())
      fail(where(bucket), ": there are ", lanes_.size(), " buckets, numbered from 0");
    const Lane& lane = lanes_[bucket];
    if (lane.ready) fail(where(bucket), ": submitted twice in one step; call finish() first");
    if (gradient.count != lane.bucket.elements())
      fail(where(bucket), ": expected ", lane.bucket.elements(), " elements, got ", gradient.count);
    if (gradient.device != link_.device)
      fail(where(bucket), ": the gradient is not on the device of this exchange");
  }

  // Later work of `to` runs after what `from` has now.
  static void order(Event& event, Stream from, Stream to) {
    if (from.handle == to.handle) return;
    event.record(from);
    event.hold_back(to);
  }

  void begin() {
    if (!agreed_) {
      const Traffic start = carrier_->traffic();
      check_same_step(link_.group, "step", step_);
      const Traffic end = carrier_->traffic();
      before_.sent += end.sent - start.sent;
      before_.received += end.received - start.received;
      before_.collectives += end.collectives - start.collectives;
      agreed_ = true;
    }
    receipt_.clear();
  }

  // Encodes and sends all buckets whose turn has come.
  void launch_ready() {
    if (needs_norm_) {
      if (submitted_ < lanes_.size()) return;
      enqueue_sum(norm(0), lanes_.size(), norm(lanes_.size()), link_.device, stream_.get());
    }
    while (next_ < lanes_.size() && lanes_[next_].ready) launch(next_++);
  }

  void launch(std::size_t index) {
    Lane& lane = lanes_[index];
    Cargo& cargo = lane.cargo;
    cargo.leg = lane.compressor->leg(step_, 0);
    cargo.written = receipt_.written(index);
    const bool gathers = cargo.leg.reduction == Reduction::gather;
    if (cargo.leg.reduction == Reduction::scatter)
      fail(where(index), ": a scheme that scatters does not run on CUDA yet");
    const std::size_t bytes = cargo.leg.bytes;
    cargo.out = cargo.leg.in_place ? Bytes(static_cast<std::byte*>(lane.gradient.data), bytes)
                                   : room(lane.payload, bytes);
    if (gathers)
      cargo.slots = room(lane.slots, bytes * static_cast<std::size_t>(link_.group.size()));
    lane.compressor->encode(turn(lane), lane.gradient, cargo.out);
    lane.encoded = true;
    carrier_->send(index, cargo);
    report_.payload_bytes += gathers ? 0 : bytes;  // of a gather the receipt tells
    report_.dense_bytes += lane.gradient.count * sizeof(float);
  }

  // Allocates when messages have become longer, which waits for the device: in the first step, and
  // when a warm-up ends.
  Bytes room(Buffer& buffer, std::size_t bytes) const {
    if (buffer.size() < bytes) {
      stream_.wait();
      buffer = Buffer(place_, bytes, link_.device);
    }
    return {buffer.data(), bytes};
  }

  void decode(Lane& lane) {
    Inbox inbox;
    inbox.data = lane.cargo.out;
    if (lane.cargo.leg.reduction == Reduction::gather) {
      inbox.data = lane.cargo.slots;
      inbox.slot_bytes = lane.cargo.leg.bytes;
    }
    const Status status = lane.compressor->decode(turn(lane), inbox, lane.gradient);
    if (!status.ok()) fail(where(lane.bucket.id), ": ", status.what, not_taken);
  }

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
      const auto place = static_cast<std::size_t>(bucket_of(found.fault));
      remember(text_of(place_of(rank(), step, place), ", bytes from rank ", rank_of(found.fault),
                       ": ", explain(code_of(found.fault)), not_taken));
    }
    if (found.unsound != 0 && found.skipped == 0)
      remember(text_of(place_of(rank(), step, 0),
                       ": a scheme found its gradient beyond the limit, but did not tell the "
                       "others"));
    report_.payload_bytes += receipt_.bytes();
    ++report_.steps;
    report_.skipped += found.skipped != 0 ? 1 : 0;
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
    try {
      receipt_.raise();
      for (Lane& lane : lanes_) {
        if (std::exchange(lane.encoded, false))
          lane.compressor->conclude(turn(lane), lane.gradient, 0);
      }
      stream_.wait();
    } catch (const std::exception& error) {
      damaged_ = true;
      error_ = std::make_exception_ptr(
          Error(text_of(cause, "; and what was sent could not be put back: ", error.what())));
    }
  }

  const StreamLink link_;
  const Place place_;
  OwnStream stream_;
  std::deque<Lane> lanes_;  // does not move them: events stay in place
  Receipt receipt_;
  Buffer scratch_, norms_;  // norms by bucket, then that of all
  std::unique_ptr<Carrier> carrier_;
  Traffic before_;
  bool needs_norm_ = false;

  std::uint64_t step_ = 0;
  bool agreed_ = false;                   // all ranks are at this step
  std::size_t submitted_ = 0, next_ = 0;  // next_: the bucket to be sent next
  std::optional<std::uint64_t> pending_;  // the finished step whose receipt was not read
  std::optional<StepResult> last_;
  std::exception_ptr error_;
  bool damaged_ = false;  // the memory must not be saved
  bool broken_ = false;   // the device may never be idle again
  Report report_;
};

StreamExchange::StreamExchange(const StreamLink& link, const std::vector<Bucket>& buckets,
                               const Config& config, const ExchangeOptions& options)
    : StreamExchange(link, buckets, compressors_on(link, buckets, config, options), config.str()) {}

StreamExchange::StreamExchange(const StreamLink& link, std::vector<Bucket> buckets,
                               std::vector<std::unique_ptr<Compressor>> compressors,
                               const std::string& description)
    : engine_(std::make_unique<Engine>(link, std::move(buckets), std::move(compressors),
                                       description)) {}

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
