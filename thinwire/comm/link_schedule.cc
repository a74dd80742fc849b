// link_schedule.cc: draws jitter and outages, and computes when messages have arrived.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/comm/link_schedule.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

#include "thinwire/core/random.h"

namespace thinwire {
namespace {

enum class Draw : std::uint64_t { jitter = 1, length = 2, begin = 3 };

// Uniform in [0, 1).
double unit(std::uint64_t seed, Draw draw, int rank, std::uint64_t number) {
  const std::uint64_t key = random_at(random_at(seed, 0), static_cast<std::uint64_t>(draw));
  return double{random_unit(random_at(key, static_cast<std::uint64_t>(rank)), number)};
}

}  // namespace

double LinkSchedule::latency(std::uint64_t number, std::uint64_t steps) const {
  double sum = static_cast<double>(steps) * link_.latency_seconds;
  if (link_.jitter_seconds == 0) return sum;
  for (std::uint64_t step = 0; step < steps; ++step) {
    double slowest = 0;
    for (int rank = 0; rank < ranks_; ++rank)
      slowest = std::max(slowest, unit(link_.seed, Draw::jitter, rank, number << 20 | step));
    sum += slowest * link_.jitter_seconds;
  }
  return sum;
}

Outage LinkSchedule::outage(int rank, std::uint64_t window) const {
  const double length = link_.outage_seconds * (0.5 + unit(link_.seed, Draw::length, rank, window));
  const double room = link_.every_seconds - length;
  const double begin = static_cast<double>(window) * link_.every_seconds +
                       room * unit(link_.seed, Draw::begin, rank, window);
  return {begin, begin + length};
}

std::uint64_t LinkSchedule::window(double time) const {
  return static_cast<std::uint64_t>(time / link_.every_seconds);
}

// Returns `time`, or the end of the outage that contains it. Also checks the next window, because
// rounding may put a time close to the border on either side of it.
double LinkSchedule::up(int rank, double time) const {
  const std::uint64_t first = window(time);
  for (std::uint64_t w = first; w < first + 2; ++w) {
    const Outage down = outage(rank, w);
    if (down.begin <= time && time < down.end) time = down.end;
  }
  return time;
}

// The next time after `time` at which the link, which is up then, goes down.
double LinkSchedule::next_outage(int rank, double time) const {
  const std::uint64_t now = window(time);
  const double begin = outage(rank, now).begin;
  return begin > time ? begin : outage(rank, now + 1).begin;
}

// The first time from `time` on at which all these links are up.
double LinkSchedule::all_up(std::span<const int> ranks, double time) const {
  for (double before = -1; before != time;) {
    before = time;
    for (const int rank : ranks) time = up(rank, time);
  }
  return time;
}

double LinkSchedule::passed(std::span<const int> ranks, double from, double seconds) const {
  for (double time = from;;) {
    time = all_up(ranks, time);
    double end = std::numeric_limits<double>::infinity();
    for (const int rank : ranks) end = std::min(end, next_outage(rank, time));
    if (seconds <= end - time) return time + seconds;
    seconds -= end - time;
    time = end;
  }
}

double LinkSchedule::passed(Pattern pattern, double from, double seconds) const {
  if (link_.outage_seconds == 0 || ranks_ < 2) return from + seconds;
  std::vector<int> ranks(static_cast<std::size_t>(ranks_));
  std::iota(ranks.begin(), ranks.end(), 0);
  const double chained = passed(ranks, from, seconds);
  if (pattern == Pattern::chain) return chained;
  // Only ranks with an outage before that time can make a pair slow.
  std::erase_if(ranks, [&](int rank) {
    return up(rank, from) == from && next_outage(rank, from) >= chained;
  });
  if (ranks.size() <= 2) return chained;
  double slowest = from + seconds;
  for (std::size_t a = 0; a < ranks.size(); ++a) {
    for (std::size_t b = a + 1; b < ranks.size(); ++b)
      slowest = std::max(slowest, passed(std::vector{ranks[a], ranks[b]}, from, seconds));
  }
  return slowest;
}

}  // namespace thinwire
