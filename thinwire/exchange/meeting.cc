// meeting.cc: collectives among ranks that take turns.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/exchange/meeting.h"

#include <algorithm>
#include <utility>

#include "thinwire/comm/cost.h"
#include "thinwire/comm/reduce.h"
#include "thinwire/core/error.h"

namespace thinwire {
namespace {

ReduceOp op_of(const Leg& leg) {
  return leg.reduction == Reduction::sum ? ReduceOp::sum : ReduceOp::max;
}

Call call_of(const Leg& leg) {
  if (leg.reduction == Reduction::gather) return {.kind = Kind::all_gather, .bytes = leg.bytes};
  if (leg.reduction == Reduction::scatter) return {.kind = Kind::all_to_all, .bytes = leg.bytes};
  return {.kind = Kind::all_reduce, .bytes = leg.bytes, .dtype = leg.dtype, .op = op_of(leg)};
}

// What it wrote lies in memory beside that of other ranks.
void check_lengths(int rank, const Call& call, const Written& written) {
  std::size_t most = 0;
  if (call.kind == Kind::all_gather) most = written.bytes;
  if (call.kind == Kind::all_to_all) most = std::ranges::max(written.pieces);
  if (most > call.bytes) {
    fail("rank ", rank, ": ", call.str(), ": rank ", rank, " wants to send ", most,
         " bytes to a slot of ", call.bytes);
  }
}

}  // namespace

// A collective as a rank waits for it.
class Meeting::Attendance final : public Pending::Work {
 public:
  Attendance(Meeting& meeting, std::shared_ptr<Collective> collective, std::size_t rank)
      : meeting_(meeting), collective_(std::move(collective)), rank_(rank) {}

  void wait() override {
    if (!done()) {
      fail("rank ", rank_, ": ", collective_->call.str(),
           ": waited for before all ranks have sent; this is a bug of the virtual exchange");
    }
    if (rank_ == 0) meeting_.marks_.push_back({collective_->number, true});
  }
  bool done() override { return !collective_->costs.empty(); }
  Cost cost() const override { return collective_->costs[rank_]; }

 private:
  Meeting& meeting_;
  std::shared_ptr<Collective> collective_;
  std::size_t rank_;
};

class Meeting::Seat final : public Carrier {
 public:
  Seat(Meeting& meeting, int rank) : meeting_(meeting), rank_(rank) {}

  Pending send(Passage& passage, const Written& written, Stream) override {
    return meeting_.send(rank_, passage, written);
  }
  bool waits() const override { return true; }
  Traffic traffic() const override { return meeting_.traffic_[static_cast<std::size_t>(rank_)]; }

 private:
  Meeting& meeting_;
  int rank_;
};

Meeting::Meeting(int ranks)
    : ranks_(static_cast<std::size_t>(ranks)), sent_(ranks_), traffic_(ranks_) {}

std::unique_ptr<Carrier> Meeting::carrier(int rank) { return std::make_unique<Seat>(*this, rank); }

void Meeting::begin_step() {
  step_ = first_open_;
  marks_.clear();
  slowest_.clear();
}

Pending Meeting::send(int rank, Passage& passage, const Written& written) {
  const auto me = static_cast<std::size_t>(rank);
  const Call call = call_of(passage.leg());
  const auto place = static_cast<std::size_t>(sent_[me]++ - first_open_);
  if (place == open_.size()) {
    open_.push_back(std::make_shared<Collective>());
    open_.back()->number = static_cast<std::size_t>(first_open_ - step_) + place;
    open_.back()->call = call;
  }
  const std::shared_ptr<Collective> collective = open_[place];
  if (!(call == collective->call))
    throw Error(mismatch_text(collective->number, 0, collective->call, rank, call));
  check_lengths(rank, call, written);
  passage.post(written);
  collective->passages.push_back(&passage);
  if (me == 0) marks_.push_back({collective->number, false});
  if (collective->passages.size() == ranks_) carry(*collective);
  return Pending(std::make_unique<Attendance>(*this, collective, me));
}

// All ranks have sent. They did so in turn, so this is the oldest collective that is open.
void Meeting::carry(Collective& collective) {
  const Call& call = collective.call;
  if (call.kind == Kind::all_reduce) {
    std::vector<ConstBytes> parts;
    for (const Passage* passage : collective.passages) parts.push_back(passage->out());
    const Bytes sum = collective.passages[0]->out();
    reduce_ranks(parts, call.dtype, call.op, [&](std::size_t at, ConstBytes result) {
      std::ranges::copy(result, sum.subspan(at).begin());
    });
    for (std::size_t r = 1; r < ranks_; ++r) collective.passages[r]->receive(sum);
  }
  price(collective);
  open_.pop_front();
  ++first_open_;
}

void Meeting::price(Collective& collective) {
  const bool scatter = collective.call.kind == Kind::all_to_all;
  std::vector<std::size_t> sizes, mine;
  Cost slowest;
  for (std::size_t r = 0; r < ranks_; ++r) {
    const Inbox inbox = collective.passages[r]->inbox();
    sizes.assign(inbox.sizes.begin(), inbox.sizes.end());
    mine.clear();
    for (const Passage* to : collective.passages)
      if (scatter) mine.push_back(to->inbox().sizes[r]);
    const Operands operands{.mine_sizes = mine, .sizes = sizes};
    collective.costs.push_back(
        c10d_cost(collective.call, operands, static_cast<int>(r), static_cast<int>(ranks_)));
    add(traffic_[r], collective.costs.back());
    if (collective.costs.back().path >= slowest.path) slowest = collective.costs.back();
  }
  slowest_.push_back(slowest);
}

// As an emulated link has it (comm/link_group.cc).
double Meeting::seconds_over(const Link& link) const {
  if (!link.steady())
    fail("link '", link.str(), "': a time is told only of a link without jitter and outages");
  double now = 0, free = 0;
  std::vector<double> release(slowest_.size());
  for (const Mark& mark : marks_) {
    if (mark.end) {
      now = std::max(now, release[mark.collective]);
      continue;
    }
    const Cost& cost = slowest_[mark.collective];
    const auto latencies = [&](std::uint64_t steps) {
      return static_cast<double>(steps) * link.latency_seconds;
    };
    free = std::max(free, now) + link.wire_seconds(cost.path);
    release[mark.collective] =
        free + link.lag(cost, latencies(cost.lead + 1), latencies(cost.lead + cost.steps));
  }
  return now;
}

}  // namespace thinwire
