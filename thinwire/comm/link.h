// link.h: the emulated link. It wraps any group and delays each collective by the time that its
// engine's message pattern (cost.h) would take over a link of the given bandwidth and latency. The
// link may also be unreliable: latencies vary and outages happen, by a seeded schedule
// (link_schedule.h). name() always says that the link is emulated.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "thinwire/comm/group.h"

namespace thinwire {

struct Link {
  double bytes_per_second = 0;  // per worker and direction; 0: unlimited
  double latency_seconds = 0;   // one message, one way
  double jitter_seconds = 0;    // a message takes up to this much longer
  double outage_seconds = 0;    // mean length of an outage of one worker's link; 0: no outages
  double every_seconds = 0;     // one outage in this time; at least twice outage_seconds
  std::uint64_t seed = 1;       // seed of jitter and outages

  // Parses "100mbit", "1gbit,20ms", "25gbit,50us" or "inf,5ms", optionally followed by any of
  // jitter=5ms, outage=2s/30s and seed=7. Throws an Error that shows the forms.
  static Link parse(std::string_view text);
  std::string str() const;

  // True without jitter and outages.
  bool steady() const { return jitter_seconds == 0 && outage_seconds == 0; }

  // Duration of one collective on a steady link: the bytes of its path, plus the latencies that do
  // not overlap with them.
  double seconds(const Cost& cost) const;

  // Time of these bytes on the wire, as TCP over Ethernet: each 1514-byte frame carries 1448.
  double wire_seconds(std::uint64_t bytes) const;

  // Time that a collective takes beyond the bytes of its path. `first` is the latency until its
  // second step, `all` the latency of all steps. The difference overlaps with the bytes if a step
  // begins before the previous one ends.
  double lag(const Cost& cost, double first, double all) const;
};

// Time that the c10d engine would take over the link to average `bytes` of each worker's payload in
// `collectives` equal parts, one after another: by all-reduce if `sums`, otherwise by gathers.
double average_seconds(const Link& link, int workers, std::uint64_t bytes, unsigned collectives,
                       bool sums);

// The group must outlive the result, and must not be used directly meanwhile. If the link is not
// steady, the ranks agree on when each collective begins: a gather of 8 bytes runs beside it, which
// traffic() does not count. So all ranks see the same outages, and a collective ends on all ranks
// at the same time. The schedule starts with the first collective, which blocks until all ranks
// have issued it. The ranks therefore share that start to the accuracy of the group's barrier.
std::unique_ptr<Group> emulate_link(Group& group, const Link& link);
// The same, owning the group.
std::unique_ptr<Group> emulate_link(std::unique_ptr<Group> group, const Link& link);

}  // namespace thinwire
