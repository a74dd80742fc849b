// virtual_exchange.cc: the steps of all ranks, in lock-step.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/exchange/virtual_exchange.h"

#include <algorithm>
#include <deque>
#include <exception>
#include <utility>

#include "thinwire/core/buffer.h"
#include "thinwire/core/error.h"
#include "thinwire/exchange/agreement.h"
#include "thinwire/exchange/meeting.h"
#include "thinwire/exchange/participant.h"
#include "thinwire/exchange/setup.h"

namespace thinwire {
namespace {

int ranks_of(int workers, const ExchangeKind& kind) {
  if (workers < 1) fail("virtual exchange: expected at least 1 worker, got ", workers);
  return workers + kind.servers;
}

// An error as text that names the rank.
std::string named(int rank, const std::string& text) {
  const std::string name = "rank " + std::to_string(rank);
  return text.starts_with(name + ":") || text.starts_with(name + ",") ? text : name + ": " + text;
}

}  // namespace

class VirtualExchange::Engine {
 public:
  Engine(int workers, const std::vector<Bucket>& buckets, const Make& make,
         const ExchangeOptions& options)
      : workers_(workers), meeting_(ranks_of(workers, options.kind)) {
    const int ranks = ranks_of(workers, options.kind);
    for (int rank = 0; rank < ranks; ++rank) {
      const Participant::Role role{rank, ranks, rank >= workers, false};
      ranks_.emplace_back(role, buckets, make({rank, ranks}), meeting_.carrier(rank),
                          options.fuse_bytes);
      if (rank > 0) ranks_[place(rank)].follow(ranks_[0]);
      share_passages(ranks_.back().lanes());
    }
    if (ranks > workers) make_room(buckets);
  }

  int workers() const { return workers_; }
  int ranks() const { return static_cast<int>(ranks_.size()); }

  void submit(int worker, std::uint16_t bucket, const TensorView& gradient) {
    if (error_) std::rethrow_exception(error_);
    if (worker < 0 || worker >= workers_)
      fail("worker ", worker, ": there are ", workers_, " workers, numbered from 0");
    Lanes& lanes = ranks_[place(worker)].lanes();
    lanes.check_gradient(bucket, gradient);
    if (gradient.device.kind != Device::Kind::cpu) {
      fail(lanes.where(bucket),
           ": the gradient is on a device; virtual workers take gradients on the CPU only");
    }
    require_gradient(gradient, lanes[bucket].bucket, {}, lanes.where(bucket));
    lanes.submit(bucket, gradient, {});
    ++submitted_;
  }

  StepResult finish() {
    if (error_) std::rethrow_exception(error_);
    for (int worker = 0; worker < workers_; ++worker)
      ranks_[place(worker)].lanes().check_all_ready();
    check_apart();
    try {
      const StepResult result = run();
      submitted_ = 0;
      for (Participant& rank : ranks_) {
        rank.lanes().end_step();
        ++rank.lanes().step;
      }
      return result;
    } catch (const std::exception& error) {
      give_up(error.what());
    } catch (...) {
      give_up("an exception that is no std::exception");
    }
    std::rethrow_exception(error_);
  }

  Report report(int rank) const {
    check_rank(rank);
    return ranks_[place(rank)].tally().report();
  }

  void visit_state(int rank, StateVisitor& visitor) {
    check_rank(rank);
    if (damaged_) std::rethrow_exception(error_);
    if (submitted_ != 0 && !error_)
      fail("rank ", rank, ": state was visited inside a step; call finish() first");
    ranks_[place(rank)].lanes().visit_state(visitor);
  }

  double seconds_over(const Link& link) const { return meeting_.seconds_over(link); }

 private:
  static std::size_t place(int rank) { return static_cast<std::size_t>(rank); }

  void check_rank(int rank) const {
    if (rank < 0 || rank >= ranks())
      fail("rank ", rank, ": there are ", ranks(), " ranks, numbered from 0");
  }

  void share_passages(Lanes& lanes) {
    const int rank = ranks() - 1, all = static_cast<int>(meeting_.ranks());
    for (std::size_t b = 0; b < lanes.size(); ++b) {
      const Compressor& compressor = *lanes[b].compressor;
      for (int round = 0; round < compressor.rounds(); ++round) {
        const auto r = static_cast<std::size_t>(round);
        lanes[b].passages[r].share(ranks_[0].lanes()[b].passages[r], rank, all,
                                   compressor.learns(round));
      }
    }
  }

  // Servers have no gradients, and nobody reads their averages: one memory does for all of them.
  void make_room(const std::vector<Bucket>& buckets) {
    std::size_t most = 0;
    for (const Bucket& bucket : buckets)
      most = std::max(most, bucket.elements() * size_of(bucket.dtype));
    room_ = Buffer(Place::host, most);
  }

  // Every worker's gradient needs memory of its own: after a second backward into the same memory,
  // all workers would have the last one's gradient.
  void check_apart() const {
    struct Range {
      const std::byte *begin, *end;
      int rank;
      std::uint16_t bucket;
    };
    std::vector<Range> all;
    for (const Participant& rank : ranks_) {
      for (const Lane& lane : rank.lanes()) {
        const auto* begin = static_cast<const std::byte*>(lane.gradient.data);
        const std::size_t bytes = lane.gradient.count * size_of(lane.gradient.dtype);
        if (rank.rank() < workers_ && bytes > 0)
          all.push_back({begin, begin + bytes, rank.rank(), lane.bucket.id});
      }
    }
    std::ranges::sort(all, {}, &Range::begin);
    for (std::size_t i = 1; i < all.size(); ++i) {
      if (all[i].begin >= all[i - 1].end) continue;
      fail("worker ", all[i].rank, ", bucket ", all[i].bucket, ": its gradient shares memory with ",
           "that of worker ", all[i - 1].rank, ", bucket ", all[i - 1].bucket,
           "; every worker needs memory of its own");
    }
  }

  // Lets every rank do its part, in order.
  template <typename Part>
  void each(const Part& part) {
    for (Participant& rank : ranks_) {
      at_ = rank.rank();
      part(rank);
    }
  }

  StepResult run() {
    check_steps();
    serve();
    meeting_.begin_step();
    each([](Participant& rank) { rank.begin(); });
    for (std::size_t bucket = 0; bucket < ranks_[0].lanes().size(); ++bucket) {
      each([&](Participant& rank) { rank.course().launch(bucket); });
      each([](Participant& rank) { rank.course().keep_up(); });
    }
    each([](Participant& rank) { rank.course().flush(); });
    for (bool more = true; more;) each([&](Participant& rank) { more = rank.course().take_one(); });
    each([](Participant& rank) { rank.course().complete(); });
    // Before any rank ends the step: until then all of them can take it back.
    each([&](Participant& rank) {
      if (rank.found_void() != ranks_[0].found_void())
        fail("rank ", at_, ": found the step ", rank.found_void() ? "void" : "sound",
             ", but rank 0 did not; its scheme must tell all ranks the same");
    });
    StepResult result;
    each([&](Participant& rank) { result = rank.end(); });
    return result;
  }

  // Loaded states may differ.
  void check_steps() const {
    std::vector<std::uint64_t> steps;
    for (const Participant& rank : ranks_) steps.push_back(rank.lanes().step);
    check_same_steps(0, "step", steps);
  }

  void serve() {
    for (std::size_t r = place(workers_); r < ranks_.size(); ++r) {
      for (const Lane& lane : ranks_[r].lanes()) {
        const TensorView room{room_.data(), lane.bucket.elements(), lane.bucket.dtype, {}};
        ranks_[r].lanes().submit(lane.bucket.id, room, {});
      }
    }
  }

  // Called in an exception handler: the step and every later call end with this error.
  void give_up(const std::string& cause) {
    std::string text = named(at_, cause);
    for (Participant& rank : ranks_) {
      const std::string failures = rank.give_up();
      if (!failures.empty()) text += "; and " + failures;
      damaged_ = damaged_ || rank.damaged();
    }
    error_ = std::make_exception_ptr(Error(text));
  }

  int workers_;
  Meeting meeting_;
  Buffer room_;                    // of servers
  std::deque<Participant> ranks_;  // they stay in place
  int at_ = 0;                     // the rank whose turn it is
  std::size_t submitted_ = 0;      // in this step
  std::exception_ptr error_;
  bool damaged_ = false;  // taking a step back failed: the memory must not be saved
};

VirtualExchange::VirtualExchange(int workers, const std::vector<Bucket>& buckets,
                                 const Config& config, const ExchangeOptions& options)
    : VirtualExchange(workers, buckets, std::vector<Config>(buckets.size(), config), options) {}

VirtualExchange::VirtualExchange(int workers, const std::vector<Bucket>& buckets,
                                 const std::vector<Config>& configs, const ExchangeOptions& options)
    : VirtualExchange(
          workers, buckets,
          [&](const Site& site) { return make_compressors(site, buckets, configs, options.kind); },
          options) {}

VirtualExchange::VirtualExchange(int workers, const std::vector<Bucket>& buckets, const Make& make,
                                 const ExchangeOptions& options)
    : engine_(std::make_unique<Engine>(workers, buckets, make, options)) {}

VirtualExchange::~VirtualExchange() = default;

int VirtualExchange::workers() const { return engine_->workers(); }

int VirtualExchange::ranks() const { return engine_->ranks(); }

void VirtualExchange::submit(int worker, std::uint16_t bucket, TensorView gradient) {
  engine_->submit(worker, bucket, gradient);
}

StepResult VirtualExchange::finish() { return engine_->finish(); }

Report VirtualExchange::report(int rank) const { return engine_->report(rank); }

void VirtualExchange::visit_state(int rank, StateVisitor& visitor) {
  engine_->visit_state(rank, visitor);
}

double VirtualExchange::seconds_over(const Link& link) const { return engine_->seconds_over(link); }

}  // namespace thinwire
