// link.h: the emulated link. Wraps any group and delays each collective by what its true message
// pattern would cost on a link of the given bandwidth and latency: a ring for all-reduce, direct
// sends for gather. The link may also be unreliable: latencies that vary, and outages, from a seeded
// schedule (link_schedule.h). Always labelled in name().
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "thinwire/comm/group.h"

namespace thinwire {

struct Link {
  double bytes_per_second = 0;  // each way, per worker; 0: unlimited
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

  // Seconds on the wire of one collective, where the link is steady; `bytes` is the reduced buffer
  // (all_reduce, broadcast) or what one rank sends to one other (gather: the largest). Steps and
  // bytes per rank:
  //   all_reduce  2(N-1) steps of bytes/N    all_gather, all_to_all  one step, (N-1)*bytes
  //   broadcast  ceil(log2 N) steps of bytes
  double all_reduce_seconds(int ranks, std::size_t bytes) const;
  double all_gather_seconds(int ranks, std::size_t bytes) const;
  double broadcast_seconds(int ranks, std::size_t bytes) const;
};

// The group must outlive what is returned, and must not be used beside it. Where the link is not
// steady, the ranks agree on when each collective begins, by a gather of 8 bytes beside it that
// traffic() does not count; so all of them see the same outages, and a collective ends for all at
// the same time. The schedule's time begins with the first collective, whose issue blocks until all
// ranks have issued it: to the accuracy of a barrier of the group the ranks share that beginning.
std::unique_ptr<Group> emulate_link(Group& group, const Link& link);
// The same, owning the group.
std::unique_ptr<Group> emulate_link(std::unique_ptr<Group> group, const Link& link);

}  // namespace thinwire
