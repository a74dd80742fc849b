// link.h: the emulated link. Wraps any group and delays each collective by what its true message
// pattern would cost on a link of the given bandwidth and latency: a ring for all-reduce, direct
// sends for gather. Always labelled in name().
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "thinwire/comm/group.h"

namespace thinwire {

struct Link {
  double bytes_per_second = 0;  // each way, per worker; 0: unlimited
  double latency_seconds = 0;   // one message, one way

  // "100mbit", "1gbit,20ms", "25gbit,50us", "inf,5ms"; throws an Error that shows the forms.
  static Link parse(std::string_view text);
  std::string str() const;

  // Seconds on the wire of one collective; `bytes` is the reduced buffer (all_reduce, broadcast) or
  // what one rank sends to one other (gather: the largest). Steps and bytes per rank:
  //   all_reduce  2(N-1) steps of bytes/N    all_gather, all_to_all  one step, (N-1)*bytes
  //   broadcast  ceil(log2 N) steps of bytes
  double all_reduce_seconds(int ranks, std::size_t bytes) const;
  double all_gather_seconds(int ranks, std::size_t bytes) const;
  double broadcast_seconds(int ranks, std::size_t bytes) const;
};

// The group must outlive what is returned, and must not be used beside it.
std::unique_ptr<Group> emulate_link(Group& group, const Link& link);
// The same, owning the group.
std::unique_ptr<Group> emulate_link(std::unique_ptr<Group> group, const Link& link);

}  // namespace thinwire
