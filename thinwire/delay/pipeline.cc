// pipeline.cc: one thread takes messages from encoding to their means.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/delay/pipeline.h"

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <deque>
#include <exception>
#include <thread>
#include <utility>

#include "thinwire/compress/registry.h"
#include "thinwire/core/error.h"
#include "thinwire/delay/fit.h"
#include "thinwire/exchange/agreement.h"
#include "thinwire/exchange/passage.h"
#include "thinwire/exchange/tally.h"
#include "thinwire/kernels/limit.h"
#include "thinwire/kernels/norm.h"

namespace thinwire {
namespace {

using Clock = std::chrono::steady_clock;

// The pauses between polls of the collectives in flight. Polling takes CPU time from the training,
// so a pause is a small part of the time that the oldest collective has taken already, which delays
// it little in proportion. While a caller waits, the shortest pause is used.
constexpr auto shortest_pause = std::chrono::microseconds(300);
constexpr auto longest_pause = std::chrono::microseconds(10'000);
constexpr int pause_part = 16;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

class Pipeline::Engine {
 public:
  Engine(Group& group, const std::vector<Bucket>& buckets, const Config& config, std::size_t depth,
         bool own)
      : group_(group), depth_(depth), own_(own), tally_([&group] { return group.traffic(); }) {
    const Site site{group.rank(), group.size()};
    Site reader{0, 1};
    reader.sends = false;
    for (const Bucket& bucket : buckets) {
      Lane lane{bucket, make_compressor(config, bucket, site), nullptr};
      if (own) lane.reader = make_compressor(config, bucket, reader);
      check_turns(config, *lane.compressor, depth, own);
      several_legs_ = several_legs_ || lane.compressor->rounds() > 1;
      lanes_.push_back(std::move(lane));
    }
    tally_.leave_out([&] {
      check_agreement(group, buckets, config.str() + ", delayed, depth " + std::to_string(depth));
    });
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

  void start(Message message, std::vector<std::uint32_t> digests, std::uint64_t step) {
    {
      const std::lock_guard lock(mutex_);
      if (error_) std::rethrow_exception(error_);
      if (under_way_ >= depth_)
        fail("rank ", group_.rank(), ": ", under_way_, " rounds are under way; take() one first");
      if (message.size() != lanes_.size())
        fail("delay: expected a message of ", lanes_.size(), " buckets, got ", message.size());
      queue_.push_back({std::move(message), std::move(digests), step, Clock::now()});
      ++under_way_;
    }
    wake_.notify_all();
  }

  bool ready() const {
    const std::lock_guard lock(mutex_);
    return !ready_.empty() || error_;
  }

  Round take() {
    const auto begin = Clock::now();
    std::unique_lock lock(mutex_);
    if (under_way_ == 0) fail("rank ", group_.rank(), ": take() without a round under way");
    await(lock, [this] { return !ready_.empty() || error_; });
    if (ready_.empty()) std::rethrow_exception(error_);
    Round round = std::move(ready_.front());
    ready_.pop_front();
    --under_way_;
    tally_.count([&](Report& report) { report.wait_seconds += seconds_since(begin); });
    wake_.notify_all();
    return round;
  }

  std::size_t in_flight() const {
    const std::lock_guard lock(mutex_);
    return under_way_;
  }

  std::unique_lock<std::mutex> hold() {
    {
      std::unique_lock lock(mutex_);
      // Further collectives of a message start when the first has arrived, at an unknown time.
      await(lock, [this] {
        const bool issued = several_legs_ ? ready_.size() == under_way_ : queue_.empty();
        return (issued && !launching_) || error_;
      });
      if (error_) std::rethrow_exception(error_);
    }
    return std::unique_lock(group_mutex_);
  }

  Report report() const { return tally_.report(); }
  void observe(Observer observer) { tally_.observe(std::move(observer)); }

  void await_arrivals() {
    std::unique_lock lock(mutex_);
    ahead_ = depth_;
    await(lock, [this] { return ready_.size() == under_way_ || error_; });
    ahead_ = 1;
    if (error_) std::rethrow_exception(error_);
  }

  void visit_state(StateVisitor& visitor) {
    await_arrivals();
    auto number = static_cast<double>(round_), count = static_cast<double>(ready_.size());
    visitor.number("delay/round", number, Share::replicated);
    visitor.number("delay/arrived", count, Share::replicated);
    agreed_ = agreed_ && static_cast<std::uint64_t>(number) == round_;
    round_ = static_cast<std::uint64_t>(number);
    ready_.resize(static_cast<std::size_t>(count), room());
    under_way_ = ready_.size();
    for (std::size_t r = 0; r < ready_.size(); ++r) {
      for (std::size_t b = 0; b < lanes_.size(); ++b) {
        const std::string name = std::to_string(r);
        const Bucket& bucket = lanes_[b].bucket;
        visit_by_parameter(visitor, bucket, "mean" + name, ready_[r].mean[b], Share::replicated);
        if (own_)
          visit_by_parameter(visitor, bucket, "sent" + name, ready_[r].own[b], Share::local);
      }
    }
    for (Lane& lane : lanes_) lane.compressor->visit_state(visitor);
  }

 private:
  struct Lane {
    Bucket bucket;
    std::unique_ptr<Compressor> compressor, reader;
  };
  struct Queued {
    Message message;
    std::vector<std::uint32_t> digests;
    std::uint64_t step = 0;
    Clock::time_point begin;
  };
  // One bucket of a round in flight.
  struct Part {
    std::vector<float> values;  // the message, and at the end the mean
    Passage passage;
    Pending pending;
    Clock::time_point issued;
  };
  struct Flight {
    std::uint64_t round = 0;
    std::vector<Part> parts;
    Message own;
    std::vector<std::uint32_t> own_digests, digests;  // of this rank, and of all ranks
    std::vector<std::size_t> digest_sizes;
    Pending digest_pending;
    double squared_norm = 0;
    std::string fault;  // this rank's parameter that is beyond the limit
    Clock::time_point begin;
    bool there = false;
    double seconds = 0;  // from begin until its arrival
  };

  Round room() const {
    Round round;
    for (const Lane& lane : lanes_) round.mean.emplace_back(lane.bucket.elements());
    if (own_) round.own = round.mean;
    return round;
  }

  std::string where(std::uint64_t round, std::size_t bucket) const {
    return "rank " + std::to_string(group_.rank()) + ", round " + std::to_string(round) +
           ", bucket " + std::to_string(bucket);
  }

  void run() {
    try {
      Clock::time_point next_look;
      std::unique_lock lock(mutex_);
      while (!closing_) {
        if (!queue_.empty()) {
          Queued next = std::move(queue_.front());
          queue_.pop_front();
          launching_ = true;
          lock.unlock();
          launch(std::move(next));
          lock.lock();
          launching_ = false;
          done_.notify_all();
        } else if (!flights_.empty() && flights_.front().there && ready_.size() < ahead_) {
          lock.unlock();
          land();
          lock.lock();
        } else if (const Flight* const oldest = oldest_under_way()) {
          if (waiting_ == 0 && Clock::now() < next_look) {
            wake_.wait_until(lock, next_look);
            continue;
          }
          const auto begin = oldest->begin;
          lock.unlock();
          const bool news = look();
          const auto now = Clock::now();
          next_look = now + std::clamp<Clock::duration>((now - begin) / pause_part, shortest_pause,
                                                        longest_pause);
          lock.lock();
          if (waiting_ > 0 && !news && queue_.empty() && !closing_)
            wake_.wait_for(lock, shortest_pause);
        } else {
          wake_.wait(lock);
        }
      }
    } catch (...) {
      const std::lock_guard lock(mutex_);
      error_ = std::current_exception();
      done_.notify_all();
    }
    flights_.clear();
  }

  // Flights arrive in any order, so one that has arrived may be behind one that has not.
  const Flight* oldest_under_way() const {
    const auto found =
        std::ranges::find_if(flights_, [](const Flight& flight) { return !flight.there; });
    return found == flights_.end() ? nullptr : &*found;
  }

  template <typename Ready>
  void await(std::unique_lock<std::mutex>& lock, Ready ready) {
    ++waiting_;
    wake_.notify_all();
    done_.wait(lock, ready);
    --waiting_;
  }

  // Polls the collectives and marks the rounds that have arrived. Returns whether one is new.
  bool look() {
    bool news = false;
    const std::lock_guard group(group_mutex_);
    for (Flight& flight : flights_) {
      if (flight.there) continue;
      flight.there =
          std::ranges::all_of(flight.parts, [](Part& part) { return part.pending.done(); });
      flight.seconds = seconds_since(flight.begin);
      news = news || flight.there;
    }
    return news;
  }

  void launch(Queued next) {
    const std::lock_guard group(group_mutex_);
    if (!agreed_) {
      tally_.leave_out([&] {
        check_same_step(group_, "step", next.step);
        check_same_step(group_, "round", round_);
      });
      agreed_ = true;
      agreed_at_ = Clock::now();
    }
    Flight flight;
    flight.round = round_++;
    flight.begin = std::max(next.begin, agreed_at_);  // the check above is not a message's time
    flight.own_digests = std::move(next.digests);
    flight.parts.resize(lanes_.size());
    for (const auto& values : next.message)
      flight.squared_norm += squared_norm(values.data(), values.size());
    for (std::size_t b = 0; b < lanes_.size(); ++b)
      flight.parts[b].values = std::move(next.message[b]);
    constexpr double most = double{gradient_limit} * gradient_limit;
    if (!(flight.squared_norm <= most)) flight.fault = fault_of(flight);
    if (own_) flight.own.resize(lanes_.size());
    flights_.push_back(std::move(flight));  // before encode(): collectives keep pointers into it
    for (std::size_t b = 0; b < lanes_.size(); ++b) encode(flights_.back(), b, 0);
    if (!flights_.back().own_digests.empty()) send_digests(flights_.back());
  }

  // The first parameter whose update is beyond the limit. Such a message is not averaged.
  std::string fault_of(const Flight& flight) const {
    for (std::size_t b = 0; b < lanes_.size(); ++b) {
      const std::vector<float>& values = flight.parts[b].values;
      if (all_within_limit(values.data(), values.size())) continue;
      for (const Parameter& parameter : lanes_[b].bucket.parameters) {
        if (!all_within_limit(values.data() + parameter.offset, parameter.count))
          return parameter.name;
      }
    }
    return {};
  }

  void send_digests(Flight& flight) {
    const auto ranks = static_cast<std::size_t>(group_.size());
    flight.digests.resize(ranks * flight.own_digests.size());
    flight.digest_sizes.resize(ranks);
    const std::span bytes = std::as_bytes(std::span(flight.own_digests));
    flight.digest_pending =
        group_.all_gather(bytes, bytes.size(), std::as_writable_bytes(std::span(flight.digests)),
                          flight.digest_sizes, {});
  }

  void compare_digests(const Flight& flight) const {
    const std::size_t count = flight.own_digests.size();
    for (std::size_t i = count; i < flight.digests.size(); ++i) {
      if (flight.digests[i] == flight.digests[i % count]) continue;
      fail(where(flight.round, i % count), ": rank ", i / count,
           " has another anchor than rank 0; something damaged a worker's memory, or a decoder is "
           "at fault; restart from the last checkpoint");
    }
  }

  void encode(Flight& flight, std::size_t b, int leg_number) {
    Lane& lane = lanes_[b];
    Part& part = flight.parts[b];
    const Turn turn{flight.round, leg_number, {}, flight.squared_norm};
    const Leg leg = lane.compressor->leg(flight.round, leg_number);
    const auto begin = Clock::now();
    const Bytes out = part.passage.begin(leg, group_.size(), part.values.data());
    const std::size_t bytes = lane.compressor->encode(turn, part.values, out);
    if (own_ && leg_number == 0) keep_own(flight, b, out, bytes);
    tally_.stage("encode", lane.bucket.id, flight.round, begin, &Report::encode_seconds);
    tally_.count([&](Report& report) {
      report.payload_bytes += bytes;
      if (leg_number == 0) report.dense_bytes += part.values.size() * sizeof(float);
      if (leg_number == 0 && b == 0) ++report.steps;
    });
    part.issued = Clock::now();
    part.pending = part.passage.start(group_, {bytes, lane.compressor->piece_sizes()}, {});
  }

  // Decodes this rank's own bytes, as if it were the only worker.
  void keep_own(Flight& flight, std::size_t b, Bytes out, std::size_t bytes) {
    const Part& part = flight.parts[b];
    const Leg& leg = part.passage.leg();
    flight.own[b] = part.values;
    if (leg.in_place) return;
    const std::size_t sizes[] = {bytes};
    Inbox inbox;
    inbox.data = out;
    if (leg.reduction == Reduction::gather) {
      inbox.slot_bytes = leg.bytes;
      inbox.sizes = sizes;
    }
    const Status status = lanes_[b].reader->decode({flight.round, 0, {}, 0}, inbox, flight.own[b]);
    // A message that makes the round invalid must still be sent: all ranks see it when it arrives.
    if (status.code != Code::skipped) check(status, inbox, flight, b);
  }

  void land() {
    Flight& flight = flights_.front();
    {
      const std::lock_guard group(group_mutex_);
      for (std::size_t b = 0; b < lanes_.size(); ++b) {
        const int legs = lanes_[b].compressor->rounds();
        for (int leg = 0; leg < legs; ++leg) {
          if (leg > 0) encode(flight, b, leg);
          flight.parts[b].pending.wait();
          decode(flight, b, leg);
        }
      }
      flight.digest_pending.wait();
    }
    if (!flight.digests.empty()) compare_digests(flight);
    Round round;
    for (Part& part : flight.parts) round.mean.push_back(std::move(part.values));
    round.own = std::move(flight.own);
    round.seconds = flight.seconds;
    flights_.pop_front();
    const std::lock_guard lock(mutex_);
    ready_.push_back(std::move(round));
    done_.notify_all();
  }

  void decode(Flight& flight, std::size_t b, int leg_number) {
    Part& part = flight.parts[b];
    const std::uint16_t bucket = lanes_[b].bucket.id;
    tally_.stage("exchange", bucket, flight.round, part.issued);
    const auto begin = Clock::now();
    const Inbox inbox = part.passage.inbox();
    const Turn turn{flight.round, leg_number, {}, flight.squared_norm};
    check(lanes_[b].compressor->decode(turn, inbox, part.values), inbox, flight, b);
    tally_.stage("decode", bucket, flight.round, begin, &Report::decode_seconds);
  }

  void check(const Status& status, const Inbox& inbox, const Flight& flight, std::size_t b) const {
    if (status.ok()) return;
    if (status.code == Code::skipped)
      fail(
          where(flight.round, b), ": ",
          flight.fault.empty() ? "another worker's update, or the sum of all,"
                               : "this worker's update of parameter '" + flight.fault + "'",
          " is not finite, or beyond 2^90: the training has diverged; take a smaller learning rate "
          "or delay, and restart from a checkpoint");
    throw Error(round_fault(where(flight.round, b), inbox.culprit, status.what));
  }

  Group& group_;
  const std::size_t depth_;
  const bool own_;
  Tally tally_;
  std::vector<Lane> lanes_;
  bool several_legs_ = false;
  std::uint64_t round_ = 0;
  bool agreed_ = false;  // all ranks have been found to be at this round
  Clock::time_point agreed_at_;
  std::deque<Flight> flights_;  // used by the thread only

  std::mutex group_mutex_;  // locked before mutex_ where both are needed
  mutable std::mutex mutex_;
  std::condition_variable wake_, done_;
  std::deque<Queued> queue_;
  std::deque<Round> ready_;
  std::size_t under_way_ = 0;
  std::size_t ahead_ = 1;  // rounds that may be decoded before take()
  int waiting_ = 0;        // callers waiting for the thread
  bool launching_ = false, closing_ = false;
  std::exception_ptr error_;
  std::thread thread_;
};

Pipeline::Pipeline(Group& group, const std::vector<Bucket>& buckets, const Config& config,
                   std::size_t depth, bool own)
    : engine_(std::make_unique<Engine>(group, buckets, config, depth, own)) {}
Pipeline::~Pipeline() = default;

void Pipeline::start(Message message, std::vector<std::uint32_t> digests, std::uint64_t step) {
  engine_->start(std::move(message), std::move(digests), step);
}
bool Pipeline::ready() const { return engine_->ready(); }
Round Pipeline::take() { return engine_->take(); }
std::size_t Pipeline::in_flight() const { return engine_->in_flight(); }
std::unique_lock<std::mutex> Pipeline::hold() { return engine_->hold(); }
void Pipeline::await_arrivals() { engine_->await_arrivals(); }
Report Pipeline::report() const { return engine_->report(); }
void Pipeline::observe(Observer observer) { engine_->observe(std::move(observer)); }
void Pipeline::visit_state(StateVisitor& visitor) { engine_->visit_state(visitor); }

}  // namespace thinwire
