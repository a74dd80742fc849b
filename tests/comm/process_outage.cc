// process_outage.cc: between processes, the outage of one rank's link delays a collective on all
// ranks. The data is correct, and the agreement on times does not count as traffic.
// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <cstdlib>
#include <thread>

#include "tests/comm/engine.h"
#include "tests/comm/group_laws.h"
#include "thinwire/comm/link_schedule.h"

namespace {

using namespace thinwire;
using Clock = std::chrono::steady_clock;

Clock::duration seconds(double value) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(value));
}

// The schedule begins while the first collective is issued, so between `before` and `after`.
// Counted from `after`, we are certainly inside the outage or later. Counted from `before`, the
// collective certainly took until its end. This holds however slow the machine is.
struct Beginning {
  Clock::time_point before, after;
};

Beginning begin(Group& plain, Group& slow) {
  plain.barrier().wait();
  const Clock::time_point before = Clock::now();
  Pending first = slow.barrier();
  const Clock::time_point after = Clock::now();
  first.wait();
  return {before, after};
}

template <typename Collective>
void require_held_up(Group& group, const Beginning& beginning, const Outage& outage,
                     Collective collective) {
  std::this_thread::sleep_until(beginning.after + seconds(outage.begin));
  collective();
  const double took = std::chrono::duration<double>(Clock::now() - beginning.before).count();
  laws::require(group, took >= outage.end, "through after ", took,
                " s, but the link is down until ", outage.end);
}

int body(Group& group) {
  const Link link = Link::parse("1gbit,100us,jitter=100us,outage=120ms/300ms,seed=5");
  const LinkSchedule schedule(link, group.size());
  const auto slow = emulate_link(testing::make_group(), link);
  const Beginning beginning = begin(group, *slow);
  const auto ranks = static_cast<std::uint64_t>(group.size());
  for (std::uint64_t window = 1; window < 3 && ranks > 1; ++window) {
    const Outage outage = schedule.outage(static_cast<int>(window % ranks), window);
    require_held_up(group, beginning, outage, [&] {
      laws::all_reduce_is_exact_on_whole_numbers(*slow, DType::f32, ReduceOp::sum, 1001);
    });
  }
  laws::order_laws(*slow);
  laws::require(group, slow->name() == group.name() + " over an emulated " + link.str(),
                slow->name());

  const Traffic start = slow->traffic();
  laws::Buffer data(4000);
  slow->all_reduce(data, DType::f32, ReduceOp::sum, {}).wait();
  const Traffic end = slow->traffic();
  laws::require(group, end.collectives - start.collectives == 1, "collectives ", end.collectives,
                " after ", start.collectives);
  laws::require(group, end.sent - start.sent <= 2 * data.size(), "sent ", end.sent - start.sent);
  group.barrier().wait();
  return EXIT_SUCCESS;
}

}  // namespace

int main(int argc, char** argv) { return testing::run_ranks(argc, argv, body); }
