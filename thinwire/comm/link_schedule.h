// link_schedule.h: what an emulated link does when: the latency of each message, the outages of
// each rank's link. Pure functions of (seed, rank, number of the message or time), so that every
// rank knows what the links of all do, in whatever order it asks. Not for users.
//
// Jitter: a message takes latency + U * jitter, U uniform in [0, 1): the latency is the time of
// light and switches, below which nothing comes. A step of a collective waits for its slowest
// message, so that its mean lies near latency + jitter when there are many ranks.
//
// Outages: time is cut into windows of `every`. In each, the link of each rank is down once: for a
// length uniform between a half and three halves of `outage`, anywhere in the window. One per
// window rather than independent gaps: the time down is outage / every in every run that lasts some
// windows, which lets short runs be compared, and no outage needs those before it to be found.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "thinwire/comm/link.h"

namespace thinwire {

// How the messages of a collective depend on each other. In a chain (ring, tree) each step needs
// the one before, so that one link that is down stops all. With direct messages only a pair of
// ranks waits for each other.
enum class Pattern : std::uint8_t { chain, direct };

// In seconds since the schedule's beginning: down from `begin` until before `end`.
struct Outage {
  double begin = 0, end = 0;
};

class LinkSchedule {
 public:
  LinkSchedule(const Link& link, int ranks) : link_(link), ranks_(ranks) {}

  // Of the `number`-th collective, of so many steps.
  double latency(std::uint64_t number, std::uint64_t steps) const;

  Outage outage(int rank, std::uint64_t window) const;

  // When what takes `seconds` is through, begun at time `from`: all links it needs must be up
  // together for so long, and what is under way when one goes down goes on when it is up again.
  // Between direct messages the slowest pair counts.
  double passed(Pattern pattern, double from, double seconds) const;

 private:
  double passed(std::span<const int> ranks, double from, double seconds) const;
  double all_up(std::span<const int> ranks, double time) const;
  double up(int rank, double time) const;
  double next_outage(int rank, double time) const;
  std::uint64_t window(double time) const;

  const Link link_;
  const int ranks_;
};

}  // namespace thinwire
