// link_schedule.h: the behaviour of an emulated link over time: the latency of each message and the
// outages of each rank's link. These are pure functions of (seed, rank, message number or time), so
// every rank knows the state of all links, in whatever order it asks. Not for users.
//
// Jitter: a message takes latency + U * jitter, with U uniform in [0, 1). The latency is the lower
// bound that distance and switches set. A step of a collective waits for its slowest message, so
// with many ranks its mean is close to latency + jitter.
//
// Outages: time is divided into windows of `every`. In each window the link of each rank is down
// once, at a random position, for a length uniform between a half and three halves of `outage`. One
// outage per window, instead of independent gaps, makes the fraction of time down outage / every in
// any run of a few windows, so short runs can be compared. It also lets us find each outage without
// those before it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "thinwire/comm/link.h"

namespace thinwire {

// How the messages of a collective depend on each other. In a chain (ring, tree) each step needs
// the step before, so one link that is down stops all. With direct messages, a link that is down
// delays only the pairs of its rank.
enum class Pattern : std::uint8_t { chain, direct };

// In seconds since the start of the schedule: down from `begin` until just before `end`.
struct Outage {
  double begin = 0, end = 0;
};

class LinkSchedule {
 public:
  LinkSchedule(const Link& link, int ranks) : link_(link), ranks_(ranks) {}

  // The latency of collective `number`, which has this many steps.
  double latency(std::uint64_t number, std::uint64_t steps) const;

  Outage outage(int rank, std::uint64_t window) const;

  // The time at which work of `seconds` that began at `from` is done. It progresses only while all
  // links that it needs are up; after an outage it continues where it stopped. With direct messages
  // the slowest pair counts.
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
