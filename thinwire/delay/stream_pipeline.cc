// stream_pipeline.cc: rounds in flight as work in streams. Each has its own memory for messages;
// the compressors are shared.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/delay/stream_pipeline.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <exception>
#include <utility>

#include "thinwire/compress/registry.h"
#include "thinwire/core/error.h"
#include "thinwire/delay/fit.h"
#include "thinwire/exchange/agreement.h"
#include "thinwire/exchange/as_device.h"
#include "thinwire/exchange/course.h"
#include "thinwire/exchange/receipt.h"
#include "thinwire/exchange/setup.h"
#include "thinwire/exchange/stream_norm.h"
#include "thinwire/exchange/tally.h"
#include "thinwire/kernels/norm.h"

namespace thinwire {
namespace {

// Receipts beyond those of the rounds in flight. The host reads one when its round is over, but
// need not wait for that before it has started this many more.
constexpr std::size_t spare_receipts = 4;

std::unique_ptr<Carrier> carrier_of(const StreamLink& link, const OwnStream& stream) {
  return link.data ? make_carrier(*link.data, stream) : make_patient_carrier(link.group, stream);
}

}  // namespace

class StreamPipeline::Engine {
 public:
  Engine(const StreamLink& link, const std::vector<Bucket>& buckets, const Config& config,
         std::size_t depth, bool own, const OwnStream& side, std::function<std::string()> at_fault)
      : link_(link),
        depth_(depth),
        side_(side),
        at_fault_(std::move(at_fault)),
        carrier_(carrier_of(link, side)),
        tally_([this] { return carrier_->traffic(); }) {
    const Site site{.rank = link.group.rank(), .world = link.group.size(), .device = link.device};
    SharedCompressors compressors;
    for (const Bucket& bucket : buckets) {
      compressors.push_back(make_on_device(config, bucket, site));
      check_turns(config, *compressors.back(), depth, own);
      several_legs_ = several_legs_ || compressors.back()->rounds() > 1;
      if (own)
        readers_.push_back(make_on_device(
            config, bucket, {.rank = 0, .world = 1, .sends = false, .device = link.device}));
    }
    for (std::size_t i = 0; i < depth; ++i) slots_.emplace_back(*this, buckets, compressors);
    for (std::size_t i = 0; i < depth + spare_receipts; ++i)
      tickets_.emplace_back(side, slots_.front().lanes, link.group.size());
    make_room(buckets);
    const char* const road = carrier_->waits() ? ", by the host" : ", by streams";
    tally_.leave_out([&] {
      check_agreement(link.group, buckets,
                      config.str() + ", delayed, depth " + std::to_string(depth) + road);
    });
  }

  ~Engine() {
    try {
      const DeviceScope scope(link_.device);
      if (error_) carrier_->break_off();  // what is under way may never end
      if (!broken_) side_.wait();
    } catch (const std::exception&) {  // the device is lost: so is its work
    }
  }
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  float* message(std::size_t bucket) { return slot(round_).values[bucket].as<float>(); }

  void start(const std::uint64_t* digests, std::uint64_t step) {
    guard([&] {
      if (in_flight() >= depth_)
        fail("rank ", rank(), ": ", in_flight(), " rounds are under way; take() one first");
      agree(step);
      Ticket& ticket = tickets_[round_ % tickets_.size()];
      close(ticket);  // of an earlier round
      ticket.round = round_;
      ticket.state = State::flying;
      ticket.compares = digests != nullptr;
      ticket.receipt.clear();
      Slot& at = slot(round_);
      at.ticket = &ticket;
      at.lanes.step = round_++;
      tally_.count([](Report& report) { ++report.steps; });
      enqueue_norms(at);
      for (std::size_t b = 0; b < at.lanes.size(); ++b) {
        Lane& lane = at.lanes[b];
        lane.gradient = {at.values[b].data(), lane.bucket.elements(), DType::f32, link_.device};
        lane.stream = side_.get();
        at.course.launch(b);
      }
      if (digests) send_digests(at, digests);
      ticket.receipt.close(side_.get());  // its lengths
    });
  }

  void look() {
    guard([&] {
      for (std::uint64_t round = arrived_; round < round_ && proceed(slot(round)); ++round)
        arrived_ = round + 1;
      for (Ticket& ticket : tickets_) {
        if (ticket.state != State::idle && ticket.receipt.done()) read(ticket);
      }
    });
  }

  Taken take() {
    Taken taken;
    guard([&] {
      if (in_flight() == 0) fail("rank ", rank(), ": take() without a round under way");
      complete(taken_);
      Slot& at = slot(taken_++);
      for (std::size_t b = 0; b < at.values.size(); ++b) {
        taken.mean.push_back(at.values[b].as<float>());
        taken.own.push_back(readers_.empty() ? nullptr : at.own[b].as<float>());
      }
      taken.verdict = at.ticket->receipt.verdict();
    });
    return taken;
  }

  bool ready() const { return taken_ < arrived_; }
  std::size_t in_flight() const { return static_cast<std::size_t>(round_ - taken_); }

  std::unique_lock<std::mutex> hold() {
    std::unique_lock<std::mutex> lock;
    guard([&] {
      // Further collectives of a message start when the first has arrived.
      if (several_legs_ && round_ > taken_) complete(round_ - 1);
      lock = carrier_->hold();
    });
    return lock;
  }

  void await_arrivals() {
    guard([&] {
      if (round_ > taken_) complete(round_ - 1);
    });
  }

  void settle() {
    guard([&] {
      for (Ticket& ticket : tickets_) {
        if (ticket.state == State::over) close(ticket);
      }
      side_.wait();
    });
  }

  Report report() {
    if (!error_) {
      guard([&] {
        for (Ticket& ticket : tickets_) {
          if (ticket.counted) continue;
          await(ticket);
          count(ticket);
        }
      });
    }
    return tally_.report();
  }

  void visit_state(StateVisitor& visitor) {
    await_arrivals();
    settle();
    auto number = static_cast<double>(round_), count = static_cast<double>(in_flight());
    visitor.number("delay/round", number, Share::replicated);
    visitor.number("delay/arrived", count, Share::replicated);
    if (!(count >= 0 && count <= static_cast<double>(depth_) && number >= count))
      fail("state 'delay/arrived': expected at most ", depth_, " rounds, the checkpoint has ",
           count);
    const auto round = static_cast<std::uint64_t>(number);
    agreed_ = agreed_ && round == round_;
    if (round != round_ || static_cast<std::uint64_t>(count) != in_flight()) {
      round_ = arrived_ = round;
      taken_ = round - static_cast<std::uint64_t>(count);
      for (std::uint64_t one = taken_; one < round_; ++one) {
        slot(one).ticket = &tickets_[one % tickets_.size()];
        slot(one).ticket->receipt.clear();
      }
    }
    for (std::uint64_t one = taken_; one < round_; ++one) {
      const std::string r = std::to_string(one - taken_);
      Slot& at = slot(one);
      for (std::size_t b = 0; b < at.lanes.size(); ++b) {
        visit(visitor, at.lanes[b].bucket, "mean" + r, at.values[b], Share::replicated);
        if (!readers_.empty())
          visit(visitor, at.lanes[b].bucket, "sent" + r, at.own[b], Share::local);
      }
    }
    for (Lane& lane : slots_.front().lanes) lane.compressor->visit_state(visitor);
  }

 private:
  enum class State : std::uint8_t {
    idle,    // read
    flying,  // the receipt has the lengths at most
    over,    // the receipt is about the end of the round, or will be
  };
  // What became of a round: read later than its memory is used again.
  struct Ticket {
    Ticket(const OwnStream& side, const Lanes& lanes, int ranks) : receipt(side, lanes, ranks) {}
    Receipt receipt;
    std::uint64_t round = 0;
    State state = State::idle;
    bool counted = true;    // its bytes are in the report
    bool compares = false;  // digests travel with it
    Buffer digests;         // of all ranks, in pinned memory
  };

  // The memory of a round in flight.
  struct Slot final : Stations {
    Slot(Engine& engine, const std::vector<Bucket>& buckets, const SharedCompressors& compressors)
        : engine(engine),
          lanes(engine.rank(), buckets, compressors, engine.side_),
          course(lanes, *this, *engine.carrier_, engine.side_, engine.link_.group.size(),
                 Fuser(0, engine.side_), false),
          digests(engine.side_, place_on(engine.link_.device)) {
      for (const Bucket& bucket : buckets) {
        const std::size_t bytes = bucket.elements() * sizeof(float);
        values.push_back(engine.room(bytes));
        if (!engine.readers_.empty()) own.push_back(engine.room(bytes));
      }
      // Payloads, so that no step allocates them but where a warm-up ends.
      for (Lane& lane : lanes) {
        int leg = 0;
        for (Passage& passage : lane.passages)
          passage.begin(lane.compressor->leg(0, leg++), engine.link_.group.size(), nullptr);
      }
    }

    Written encode(Lane& lane, int leg, Bytes out) override {
      return engine.encode(*this, lane, leg, out);
    }
    bool decode(Lane& lane, int leg, const Inbox& inbox) override {
      const Status status =
          lane.compressor->decode(engine.turn(*this, lane, leg), inbox, lane.gradient);
      if (!status.ok())
        throw Error(round_fault(engine.where(lanes.step, lane.bucket.id), -1, status.what));
      return true;
    }
    void arrived(const Lane&, Tally::Time) override {}

    Engine& engine;
    Lanes lanes;
    Course course;
    std::vector<Buffer> values;  // by bucket: the message, and at the end the mean
    std::vector<Buffer> own;     // by bucket: the message as others decode it
    Passage digests;
    Pending digests_pending;
    Ticket* ticket = nullptr;
  };

  int rank() const { return link_.group.rank(); }
  Slot& slot(std::uint64_t round) { return slots_[round % slots_.size()]; }
  std::string where(std::uint64_t round, std::size_t bucket) const {
    return text_of("rank ", rank(), ", round ", round, ", bucket ", bucket);
  }

  // An error ends all: later calls throw it again.
  template <typename Body>
  void guard(Body body) {
    if (error_) std::rethrow_exception(error_);
    const DeviceScope scope(link_.device);
    try {
      body();
    } catch (const std::exception&) {
      error_ = std::current_exception();
      throw;
    }
  }

  Buffer room(std::size_t bytes) const { return {place_on(link_.device), bytes, link_.device}; }

  void make_room(const std::vector<Bucket>& buckets) {
    const std::uint64_t length = buckets.size() * sizeof(std::uint64_t);
    digest_length_ = room(sizeof length);
    side_.copy(digest_length_.data(), &length, sizeof length);
    for (Ticket& ticket : tickets_)
      ticket.digests =
          Buffer(place_beside(link_.device), static_cast<std::size_t>(link_.group.size()) * length);
    if (!readers_.empty()) own_verdict_ = room(sizeof(Verdict));
    if (slots_.front().lanes.needs_norm()) {
      std::size_t most = 0;
      for (const Bucket& bucket : buckets) most = std::max(most, norm_scratch(bucket.elements()));
      scratch_ = room(most * sizeof(double));
      norms_ = room((buckets.size() + 1) * sizeof(double));
    }
    side_.wait();
  }

  void visit(StateVisitor& visitor, const Bucket& bucket, const std::string& name,
             const Buffer& array, Share share) const {
    std::vector<float> host(array.size() / sizeof(float));
    side_.copy(host.data(), array.data(), array.size());
    side_.wait();
    visit_by_parameter(visitor, bucket, name, host, share);
    side_.copy(array.data(), host.data(), array.size());
    side_.wait();
  }

  void agree(std::uint64_t step) {
    if (agreed_) return;
    tally_.leave_out([&] {
      const auto lock = carrier_->hold();
      check_same_step(link_.group, "step", step);
      check_same_step(link_.group, "round", round_);
    });
    agreed_ = true;
  }

  Turn turn(const Slot& slot, const Lane& lane, int leg) const {
    Turn turn{slot.lanes.step, leg, side_.get()};
    turn.verdict = slot.ticket->receipt.verdict();
    turn.written = slot.ticket->receipt.written(lane.bucket.id, leg);
    turn.norm = norms_.size() > 0 ? norms_.as<double>() + slot.lanes.size() : nullptr;
    return turn;
  }

  void enqueue_norms(Slot& slot) {
    if (norms_.size() == 0) return;
    auto* const norms = norms_.as<double>();
    for (std::size_t b = 0; b < slot.lanes.size(); ++b) {
      const TensorView message{slot.values[b].data(), slot.lanes[b].bucket.elements(), DType::f32,
                               link_.device};
      enqueue_norm(message, scratch_.as<double>(), norms + b, side_.get());
    }
    enqueue_sum(norms, slot.lanes.size(), norms + slot.lanes.size(), link_.device, side_.get());
  }

  Written encode(Slot& slot, Lane& lane, int leg, Bytes out) {
    const Turn now = turn(slot, lane, leg);
    const std::size_t bytes = lane.compressor->encode(now, lane.gradient, out);
    // Of a gather the receipt tells.
    const bool told = lane.passages[static_cast<std::size_t>(leg)].has_slots();
    slot.ticket->counted = false;
    if (!readers_.empty()) keep_own(slot, lane, now, out);
    tally_.count([&](Report& report) {
      report.payload_bytes += told ? 0 : bytes;
      if (leg == 0) report.dense_bytes += lane.gradient.count * sizeof(float);
    });
    return {bytes, {}, now.written};
  }

  // Decodes this rank's own bytes, as if it were the only worker, before a sum changes them.
  void keep_own(Slot& slot, const Lane& lane, Turn turn, Bytes out) {
    const Buffer& own = slot.own[lane.bucket.id];
    const Leg& leg = lane.passages.front().leg();
    side_.copy(own.data(), lane.gradient.data, own.size());
    if (leg.in_place) return;
    Inbox inbox;
    inbox.data = out;
    if (leg.reduction == Reduction::gather) inbox.slot_bytes = leg.bytes;
    // A message that makes the round void must still be sent: all ranks see it when it arrives.
    side_.zero(own_verdict_.data(), own_verdict_.size());
    turn.verdict = own_verdict_.as<Verdict>();
    const Status status = readers_[lane.bucket.id]->decode(
        turn, inbox, {own.data(), lane.gradient.count, DType::f32, link_.device});
    if (!status.ok())
      throw Error(round_fault(where(turn.step, lane.bucket.id), rank(), status.what));
  }

  void send_digests(Slot& slot, const std::uint64_t* digests) {
    const std::size_t bytes = slot.lanes.size() * sizeof(std::uint64_t);
    const Leg leg{Reduction::gather, DType::f32, bytes};
    const Bytes out = slot.digests.begin(leg, link_.group.size(), nullptr);
    side_.copy(out.data(), digests, bytes);
    slot.digests_pending = carrier_->send(
        slot.digests, {bytes, {}, digest_length_.as<const std::uint64_t>()}, side_.get());
  }

  // Decodes a round if it has arrived.
  bool proceed(Slot& slot) {
    if (slot.ticket->state != State::flying) return true;
    if (!slot.course.proceed()) return false;
    if (slot.ticket->compares && !slot.digests_pending.done()) return false;
    finish(slot);
    return true;
  }

  // Decodes all rounds up to this one, and waits for those that are not there.
  void complete(std::uint64_t last) {
    const Tally::Time begin = Tally::now();
    for (; arrived_ <= last; ++arrived_) {
      Slot& at = slot(arrived_);
      at.course.complete();
      finish(at);
    }
    tally_.count([&](Report& report) {
      report.wait_seconds += std::chrono::duration<double>(Tally::now() - begin).count();
    });
  }

  void finish(Slot& slot) {
    Ticket& ticket = *slot.ticket;
    if (ticket.receipt.done()) count(ticket);
    if (ticket.compares) {
      slot.digests_pending.wait();
      const Bytes all = slot.digests.slots();
      side_.copy(ticket.digests.data(), all.data(), all.size());
    }
    ticket.receipt.close(side_.get());
    ticket.state = State::over;
  }

  void count(Ticket& ticket) {
    if (std::exchange(ticket.counted, true)) return;
    tally_.count([&](Report& report) { report.payload_bytes += ticket.receipt.bytes(); });
  }

  void read(Ticket& ticket) {
    count(ticket);
    if (ticket.state != State::over) return;
    ticket.state = State::idle;
    check(ticket);
  }

  void close(Ticket& ticket) {
    if (ticket.state == State::idle) return;
    await(ticket);
    read(ticket);
  }

  void await(Ticket& ticket) {
    if (!ticket.receipt.await(link_.timeout)) lose_patience(ticket.round);
  }

  // The roll call of the host's group names who is silent.
  [[noreturn]] void lose_patience(std::uint64_t round) {
    broken_ = true;
    const std::string start =
        text_of("rank ", rank(), ", round ", round, ": the device has not ended the round within ",
                link_.timeout.count(), " ms");
    std::string why = " although all ranks are there; if they are only slow, raise the limit";
    try {
      link_.group.barrier().wait();
    } catch (const std::exception& error) {
      why = std::string(": ") + error.what();
    }
    carrier_->break_off();
    throw Error(start + why);
  }

  void check(const Ticket& ticket) const {
    const Verdict found = ticket.receipt.found();
    if (found.fault != 0)
      throw Error(round_fault(where(ticket.round, static_cast<std::size_t>(bucket_of(found.fault))),
                              rank_of(found.fault), explain(code_of(found.fault))));
    if (found.skipped != 0 || found.unsound != 0) {
      const std::string parameter = at_fault_();
      fail("rank ", rank(), ", round ", ticket.round, ": ",
           parameter.empty() ? "another worker's update, or the sum of all,"
                             : "this worker's update of parameter '" + parameter + "'",
           " is not finite, or beyond 2^90: the training has diverged; take a smaller learning "
           "rate or delay, and restart from a checkpoint");
    }
    if (ticket.compares) compare(ticket);
  }

  void compare(const Ticket& ticket) const {
    const auto* const all = ticket.digests.as<const std::uint64_t>();
    const std::size_t count = slots_.front().lanes.size();
    for (std::size_t i = count; i < ticket.digests.size() / sizeof *all; ++i) {
      if (all[i] == all[i % count]) continue;
      fail(where(ticket.round, i % count), ": rank ", i / count,
           " has another anchor than rank 0; something damaged a worker's memory, or a decoder is "
           "at fault; restart from the last checkpoint");
    }
  }

  const StreamLink link_;
  const std::size_t depth_;
  const OwnStream& side_;
  const std::function<std::string()> at_fault_;
  bool several_legs_ = false;
  Buffer digest_length_, scratch_, norms_, own_verdict_;
  SharedCompressors readers_;  // book b: by bucket
  std::deque<Slot> slots_;     // of round r: r % depth
  std::deque<Ticket> tickets_;
  // Rounds started, decoded, and taken, before or after they were decoded.
  std::uint64_t round_ = 0, arrived_ = 0, taken_ = 0;
  bool agreed_ = false;  // all ranks have been found to be at this round
  bool broken_ = false;  // the device may never be idle again
  std::exception_ptr error_;
  std::unique_ptr<Carrier> carrier_;  // ends first: its thread uses the rest
  Tally tally_;
};

StreamPipeline::StreamPipeline(const StreamLink& link, const std::vector<Bucket>& buckets,
                               const Config& config, std::size_t depth, bool own,
                               const OwnStream& side, std::function<std::string()> at_fault)
    : engine_(
          std::make_unique<Engine>(link, buckets, config, depth, own, side, std::move(at_fault))) {}
StreamPipeline::~StreamPipeline() = default;

float* StreamPipeline::message(std::size_t bucket) { return engine_->message(bucket); }
void StreamPipeline::start(const std::uint64_t* digests, std::uint64_t step) {
  engine_->start(digests, step);
}
void StreamPipeline::look() { engine_->look(); }
bool StreamPipeline::ready() const { return engine_->ready(); }
StreamPipeline::Taken StreamPipeline::take() { return engine_->take(); }
std::size_t StreamPipeline::in_flight() const { return engine_->in_flight(); }
std::unique_lock<std::mutex> StreamPipeline::hold() { return engine_->hold(); }
void StreamPipeline::await_arrivals() { engine_->await_arrivals(); }
void StreamPipeline::settle() { engine_->settle(); }
Report StreamPipeline::report() { return engine_->report(); }
void StreamPipeline::visit_state(StateVisitor& visitor) { engine_->visit_state(visitor); }

}  // namespace thinwire
