// link_group.cc: a group whose collectives are done when both the engine and the link would be.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <deque>
#include <exception>
#include <thread>
#include <utility>
#include <vector>

#include "thinwire/comm/link.h"
#include "thinwire/comm/link_schedule.h"
#include "thinwire/core/error.h"

namespace thinwire {
namespace {

using Clock = std::chrono::steady_clock;

// One collective on the emulated link. Times are in seconds since the start of the schedule.
struct Passage {
  // When this rank issued it, and when each rank did (gathered if the ranks must agree).
  double mine = 0;
  std::vector<double> issued;
  std::vector<std::size_t> issued_sizes;
  Pending inner, gathering;  // declared after the memory that they write to
  std::uint64_t number = 0;  // in the order of issue
  double release = 0;        // valid once settled
  bool settled = false;
  bool agreed = false;  // `issued` has the times of all ranks

  bool done() { return inner.done() && gathering.done(); }
  void wait() {
    inner.wait();
    gathering.wait();
  }
};

// The link of one rank: passages in the order of issue. A gather's time on the link is known
// only when its sizes are. So passages are settled strictly in order, each when its inner
// collective is done.
class Queue {
 public:
  Queue(const Link& link, const LinkSchedule& schedule) : link_(link), schedule_(schedule) {}

  void add(std::shared_ptr<Passage> passage) { open_.push_back(std::move(passage)); }

  // Waits for the inner collectives up to and including this one. That takes no longer than waiting
  // for this one alone: every rank issued the earlier ones before it.
  void settle(const Passage& last) {
    while (!last.settled) settle_front();
  }

  void settle_what_is_done() {
    while (!open_.empty() && open_.front()->done()) settle_front();
  }

  // Starts the schedule, after a barrier of its own.
  void begin() {
    beginning_ = Clock::now();
    ++own_.collectives;
  }
  double now() const { return std::chrono::duration<double>(Clock::now() - beginning_).count(); }
  // Traffic of the agreement on times. Counted when it is done, as engines do, so it never exceeds
  // what they have counted.
  const Traffic& own() const { return own_; }
  Clock::time_point at(double time) const {
    return beginning_ +
           std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(time));
  }

 private:
  void settle_front() {
    Passage& passage = *open_.front();
    passage.wait();
    const Cost& cost = passage.inner.cost();
    const Pattern pattern = cost.steps > 1 ? Pattern::chain : Pattern::direct;
    const double begin = std::max(free_, *std::ranges::max_element(passage.issued));
    free_ = schedule_.passed(pattern, begin, link_.wire_seconds(cost.path));
    const double lag = link_.lag(cost, schedule_.latency(passage.number, cost.lead + 1),
                                 schedule_.latency(passage.number, cost.lead + cost.steps));
    passage.release = schedule_.passed(pattern, free_, lag);
    passage.settled = true;
    if (passage.agreed) count_agreement(passage.issued.size() - 1);
    open_.pop_front();
  }

  void count_agreement(std::size_t others) {
    own_.sent += sizeof(Passage::mine) * others;
    own_.received += sizeof(Passage::mine) * others;
    ++own_.collectives;
  }

  const Link link_;
  const LinkSchedule schedule_;
  std::deque<std::shared_ptr<Passage>> open_;
  Clock::time_point beginning_ = Clock::now();
  double free_ = 0;  // when the last settled transmission ends
  Traffic own_;
};

class LinkWork final : public Pending::Work {
 public:
  LinkWork(std::shared_ptr<Queue> queue, std::shared_ptr<Passage> passage)
      : queue_(std::move(queue)), passage_(std::move(passage)) {}

  // The caller may free the buffers after dropping a work without wait(), so end it now. While an
  // exception unwinds, the inner engine decides how, and the link adds no delay.
  ~LinkWork() override {
    if (passage_->settled) return;
    if (std::uncaught_exceptions() == exceptions_) try_settle();
    passage_->inner = Pending();
    passage_->gathering = Pending();
    passage_->agreed = false;
  }

  void wait() override {
    queue_->settle(*passage_);
    std::this_thread::sleep_until(queue_->at(passage_->release));
  }

  bool done() override {
    queue_->settle_what_is_done();
    return passage_->settled && queue_->now() >= passage_->release;
  }

  Cost cost() const override { return passage_->inner.cost(); }

 private:
  void try_settle() {
    try {
      queue_->settle(*passage_);
    } catch (const Error&) {  // the inner group remembers: the next call throws
    }
  }

  std::shared_ptr<Queue> queue_;
  std::shared_ptr<Passage> passage_;
  const int exceptions_ = std::uncaught_exceptions();
};

class LinkGroup final : public Group {
 public:
  LinkGroup(std::shared_ptr<Group> inner, const Link& link)
      : inner_(std::move(inner)),
        link_(link),
        queue_(std::make_shared<Queue>(link, LinkSchedule(link, inner_->size()))) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  std::string name() const override { return inner_->name() + " over an emulated " + link_.str(); }

  // Without the traffic that served only to agree on times.
  Traffic traffic() const override {
    Traffic traffic = inner_->traffic();
    traffic.sent -= queue_->own().sent;
    traffic.received -= queue_->own().received;
    traffic.collectives -= queue_->own().collectives;
    return traffic;
  }

  Pending all_reduce(Bytes data, DType dtype, ReduceOp op, Stream stream) override {
    return pass(inner_->all_reduce(data, dtype, op, stream));
  }

  Pending all_gather(ConstBytes mine, std::size_t slot_bytes, Bytes slots,
                     std::span<std::size_t> sizes, Stream stream) override {
    return pass(inner_->all_gather(mine, slot_bytes, slots, sizes, stream));
  }

  Pending all_to_all(ConstBytes mine, std::span<const std::size_t> mine_sizes,
                     std::size_t slot_bytes, Bytes slots, std::span<std::size_t> sizes,
                     Stream stream) override {
    return pass(inner_->all_to_all(mine, mine_sizes, slot_bytes, slots, sizes, stream));
  }

  Pending broadcast(Bytes data, int root, Stream stream) override {
    return pass(inner_->broadcast(data, root, stream));
  }

  Pending barrier() override { return pass(inner_->barrier()); }

 private:
  Pending pass(Pending inner) {
    auto passage = std::make_shared<Passage>();
    passage->inner = std::move(inner);
    passage->number = number_;
    if (link_.steady() || size() == 1) {
      passage->issued = {queue_->now()};
    } else {
      agree(*passage);
    }
    ++number_;
    queue_->add(passage);
    return Pending(std::make_unique<LinkWork>(queue_, std::move(passage)));
  }

  // A collective begins when the last rank issues it, and outages apply from then on. By its own
  // clock, each rank would see different ones.
  void agree(Passage& passage) {
    if (number_ == 0) {
      inner_->barrier().wait();
      queue_->begin();
    }
    const auto ranks = static_cast<std::size_t>(size());
    passage.mine = queue_->now();
    passage.issued.assign(ranks, passage.mine);
    passage.issued_sizes.resize(ranks);
    const auto slots = std::as_writable_bytes(std::span(passage.issued));
    const auto mine = std::as_bytes(std::span(&passage.mine, 1));
    passage.gathering = inner_->all_gather(mine, mine.size(), slots, passage.issued_sizes, {});
    passage.agreed = true;
  }

  std::shared_ptr<Group> inner_;
  const Link link_;
  std::shared_ptr<Queue> queue_;
  std::uint64_t number_ = 0;  // of the next collective, the same on all ranks
};

}  // namespace

std::unique_ptr<Group> emulate_link(Group& group, const Link& link) {
  const auto leave_it = [](Group*) {};
  return std::make_unique<LinkGroup>(std::shared_ptr<Group>(&group, leave_it), link);
}

std::unique_ptr<Group> emulate_link(std::unique_ptr<Group> group, const Link& link) {
  return std::make_unique<LinkGroup>(std::move(group), link);
}

}  // namespace thinwire
