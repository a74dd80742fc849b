// link.h: the emulated link. Wraps any group and delays each collective by what its engine's own
// message pattern (cost.h) would take over a link of the given bandwidth and latency. The link may
// also be unreliable: latencies vary, and outages happen, by a seeded schedule (link_schedule.h).
// name() always says that the link is emulated.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "thinwire/comm/group.h"

namespace thinwire {

struct Link {
  double bytes_per_second = 0;  // of the wire, each way, per worker; 0: unlimited
  double latency_seconds = 0;   // one message, one way
  double jitter_seconds = 0;    // a message takes up to this much longer
  double outage_seconds = 0;    // a worker's link is down for so long, in the mean; 0: never
  double every_seconds = 0;     // ... once in so long; at least twice outage_seconds
  std::uint64_t seed = 1;       // of jitter and outages

  // "100mbit", "1gbit,20ms", "25gbit,50us", "inf,5ms", and after these any of jitter=5ms,
  // outage=2s/30s and seed=7; throws an Error that shows the forms.
  static Link parse(std::string_view text);
  std::string str() const;

  // Neither jitter nor outages.
  bool steady() const { return jitter_seconds == 0 && outage_seconds == 0; }

  // What one collective takes where the link is steady: the bytes of its path one after the other,
  // and the latencies that do not hide behind them.
  double seconds(const Cost& cost) const;

  // What these bytes take on the wire, in TCP's frames over Ethernet: 1514 bytes carry 1448.
  double wire_seconds(std::uint64_t bytes) const;

  // What a collective takes beyond the bytes of its path, where all that comes before its second
  // step has one latency and all of it the other: the rest overlaps with the bytes if a step begins
  // before the last one ends.
  double lag(const Cost& cost, double first, double all) const;
};

// What the c10d engine would take over the link to average `bytes` of each worker's payload in
// `collectives` equal parts, one after the other: by all-reduce where `sums`, else by gathers.
double average_seconds(const Link& link, int workers, std::uint64_t bytes, unsigned collectives,
                       bool sums);

// The group must outlive what is returned, and must not be used beside it. Where the link is not
// steady, the ranks agree on when each collective begins, by a gather of 8 bytes beside it that
// traffic() does not count; so all of them see the same outages, and a collective ends for all at
// the same time. The schedule's time begins with the first collective, whose issue blocks until all
// ranks have issued it: to the accuracy of a barrier of the group the ranks share that beginning.
std::unique_ptr<Group> emulate_link(Group& group, const Link& link);
// The same, owning the group.
std::unique_ptr<Group> emulate_link(std::unique_ptr<Group> group, const Link& link);

}  // namespace thinwire
