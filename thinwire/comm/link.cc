// link.cc: parses links, prices collectives, and delays a group's collectives accordingly.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/comm/link.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <deque>
#include <exception>
#include <functional>
#include <thread>
#include <utility>

#include "thinwire/core/error.h"

namespace thinwire {
namespace {

struct Unit {
  std::string_view name;
  double factor;
};
constexpr Unit kBandwidths[] = {{"gbit", 1e9}, {"mbit", 1e6}, {"kbit", 1e3}, {"bit", 1}};
constexpr Unit kLatencies[] = {{"s", 1}, {"ms", 1e-3}, {"us", 1e-6}};

[[noreturn]] void refuse(std::string_view text) {
  fail("link '", text,
       "': expected BANDWIDTH[,LATENCY] such as 100mbit, 1gbit,20ms, 25gbit,50us or inf,5ms "
       "(kbit, mbit, gbit or inf; us, ms or s)");
}

// A plain decimal number and one of `units`; `whole` is for the error.
double quantity(std::string_view text, std::span<const Unit> units, std::string_view whole) {
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value, std::chars_format::fixed);
  if (error != std::errc{} || !std::isfinite(value) || std::signbit(value)) refuse(whole);
  const std::string_view suffix(rest, static_cast<std::size_t>(end - rest));
  for (const Unit& unit : units)
    if (suffix == unit.name) return value * unit.factor;
  refuse(whole);
}

// The value in the largest unit that leaves a number of at least 1.
std::string written(double value, std::span<const Unit> units) {
  auto unit = units.begin();
  while (unit + 1 != units.end() && value < unit->factor) ++unit;
  char text[48];
  std::snprintf(text, sizeof text, "%.12g%.*s", value / unit->factor,
                static_cast<int>(unit->name.size()), unit->name.data());
  return text;
}

int tree_steps(int ranks) {
  return static_cast<int>(std::bit_width(static_cast<unsigned>(ranks - 1)));
}

using Clock = std::chrono::steady_clock;

Clock::duration seconds(double value) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(value));
}

// One collective on the emulated link.
struct Passage {
  Pending inner;
  Clock::time_point issued = Clock::now();
  double latency = 0;                    // seconds, beside others'
  std::function<double()> transmission;  // seconds, after others'; callable once inner is done
  Clock::time_point release{};           // valid once settled
  bool settled = false;
};

// The link of one rank: passages in the order of issue. How long a gather occupies it is known only
// when its sizes are, so passages are settled strictly in order, each when its inner is done.
class Queue {
 public:
  std::shared_ptr<Passage> add(Pending inner, double latency,
                               std::function<double()> transmission) {
    auto passage = std::make_shared<Passage>();
    passage->inner = std::move(inner);
    passage->latency = latency;
    passage->transmission = std::move(transmission);
    open_.push_back(passage);
    return passage;
  }

  // Waits for the inner collectives up to and including this one. That cannot block for longer than
  // this one alone would: every rank issued the earlier ones before it.
  void settle(const Passage& last) {
    while (!last.settled) {
      open_.front()->inner.wait();
      settle_front();
    }
  }

  void settle_what_is_done() {
    while (!open_.empty() && open_.front()->inner.done()) {
      open_.front()->inner.wait();
      settle_front();
    }
  }

 private:
  void settle_front() {
    Passage& passage = *open_.front();
    free_ = std::max(free_, passage.issued) + seconds(passage.transmission());
    passage.release = free_ + seconds(passage.latency);
    passage.settled = true;
    open_.pop_front();
  }

  std::deque<std::shared_ptr<Passage>> open_;
  Clock::time_point free_{};  // when the last settled transmission ends
};

class LinkWork final : public Pending::Work {
 public:
  LinkWork(std::shared_ptr<Queue> queue, std::shared_ptr<Passage> passage)
      : queue_(std::move(queue)), passage_(std::move(passage)) {}

  // Dropped without wait(): end it now, since the sizes it reads may go. While an exception passes
  // the inner engine decides how, and the queue forgets the price.
  ~LinkWork() override {
    if (passage_->settled) return;
    if (std::uncaught_exceptions() == exceptions_) try_settle();
    passage_->inner = Pending();
    passage_->transmission = [] { return 0.0; };
  }

  void wait() override {
    queue_->settle(*passage_);
    std::this_thread::sleep_until(passage_->release);
  }

  bool done() override {
    queue_->settle_what_is_done();
    return passage_->settled && Clock::now() >= passage_->release;
  }

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

std::size_t sum_without(std::span<const std::size_t> sizes, int rank) {
  std::size_t sum = 0;
  for (std::size_t r = 0; r < sizes.size(); ++r)
    if (r != static_cast<std::size_t>(rank)) sum += sizes[r];
  return sum;
}

class LinkGroup final : public Group {
 public:
  LinkGroup(std::shared_ptr<Group> inner, const Link& link)
      : inner_(std::move(inner)), link_(link), wire_{link.bytes_per_second, 0} {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  std::string name() const override { return inner_->name() + " over an emulated " + link_.str(); }
  Traffic traffic() const override { return inner_->traffic(); }

  Pending all_reduce(Bytes data, DType dtype, ReduceOp op, Stream stream) override {
    return pass(inner_->all_reduce(data, dtype, op, stream), link_.all_reduce_seconds(size(), 0),
                constant(wire_.all_reduce_seconds(size(), data.size())));
  }

  Pending all_gather(ConstBytes mine, std::size_t slot_bytes, Bytes slots,
                     std::span<std::size_t> sizes, Stream stream) override {
    return pass(inner_->all_gather(mine, slot_bytes, slots, sizes, stream),
                link_.all_gather_seconds(size(), 0), [wire = wire_, sizes] {
                  const std::size_t largest = *std::ranges::max_element(sizes);
                  return wire.all_gather_seconds(static_cast<int>(sizes.size()), largest);
                });
  }

  // Pieces differ, so the price is the busier direction of this rank: equal pieces give the formula
  // of the gather.
  Pending all_to_all(ConstBytes mine, std::span<const std::size_t> mine_sizes,
                     std::size_t slot_bytes, Bytes slots, std::span<std::size_t> sizes,
                     Stream stream) override {
    return pass(inner_->all_to_all(mine, mine_sizes, slot_bytes, slots, sizes, stream),
                link_.all_gather_seconds(size(), 0),
                [wire = wire_, sizes, rank = rank(), sent = sum_without(mine_sizes, rank())] {
                  const std::size_t bytes = std::max(sent, sum_without(sizes, rank));
                  return wire.all_gather_seconds(2, bytes);
                });
  }

  Pending broadcast(Bytes data, int root, Stream stream) override {
    return pass(inner_->broadcast(data, root, stream), link_.broadcast_seconds(size(), 0),
                constant(wire_.broadcast_seconds(size(), data.size())));
  }

  // A dissemination barrier: empty messages in as many steps as a tree has.
  Pending barrier() override {
    return pass(inner_->barrier(), link_.broadcast_seconds(size(), 0), constant(0));
  }

 private:
  static std::function<double()> constant(double value) {
    return [value] { return value; };
  }

  Pending pass(Pending inner, double latency, std::function<double()> transmission) {
    auto passage = queue_->add(std::move(inner), latency, std::move(transmission));
    return Pending(std::make_unique<LinkWork>(queue_, std::move(passage)));
  }

  std::shared_ptr<Group> inner_;
  const Link link_;
  const Link wire_;  // the same without latency: the part that queues
  std::shared_ptr<Queue> queue_ = std::make_shared<Queue>();
};

}  // namespace

Link Link::parse(std::string_view text) {
  const std::size_t comma = text.find(',');
  const std::string_view bandwidth = text.substr(0, comma);
  Link link;
  if (bandwidth != "inf") {
    link.bytes_per_second = quantity(bandwidth, kBandwidths, text) / 8;
    if (link.bytes_per_second == 0) refuse(text);
  }
  if (comma != text.npos) link.latency_seconds = quantity(text.substr(comma + 1), kLatencies, text);
  return link;
}

std::string Link::str() const {
  std::string text = "inf";
  if (bytes_per_second > 0) text = written(bytes_per_second * 8, kBandwidths);
  if (latency_seconds > 0) text.append(1, ',').append(written(latency_seconds, kLatencies));
  return text;
}

double Link::all_reduce_seconds(int ranks, std::size_t bytes) const {
  const double steps = 2.0 * (ranks - 1);
  const double step_bytes = static_cast<double>(bytes) / ranks;
  return steps * (latency_seconds + (bytes_per_second > 0 ? step_bytes / bytes_per_second : 0));
}

double Link::all_gather_seconds(int ranks, std::size_t bytes) const {
  if (ranks < 2) return 0;
  const double all_bytes = (ranks - 1.0) * static_cast<double>(bytes);
  return latency_seconds + (bytes_per_second > 0 ? all_bytes / bytes_per_second : 0);
}

double Link::broadcast_seconds(int ranks, std::size_t bytes) const {
  const double step_bytes = static_cast<double>(bytes);
  return tree_steps(ranks) *
         (latency_seconds + (bytes_per_second > 0 ? step_bytes / bytes_per_second : 0));
}

std::unique_ptr<Group> emulate_link(Group& group, const Link& link) {
  const auto leave_it = [](Group*) {};
  return std::make_unique<LinkGroup>(std::shared_ptr<Group>(&group, leave_it), link);
}

std::unique_ptr<Group> emulate_link(std::unique_ptr<Group> group, const Link& link) {
  return std::make_unique<LinkGroup>(std::move(group), link);
}

}  // namespace thinwire
