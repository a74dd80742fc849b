// timeline.h: a worker's activity over time, and its messages in flight: the part of a trace
// (`thinwire train --trace`) that a picture of a training method needs.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/table.h"

namespace thinwire::apps {

struct Span {
  std::string name;
  std::uint64_t step = 0;   // for a message: its round
  double from = 0, to = 0;  // seconds
};

// Time 0 is the start of the first step that is shown. It follows a few warm-up steps and the
// arrival of the first message, because until then a delayed method only runs ahead.
struct Timeline {
  std::vector<Span> compute;   // forward, backward, update, take in, wait; by time
  std::vector<Span> messages;  // one per round, over all buckets; may begin before 0

  bool empty() const { return compute.empty(); }
};

// Reads a document in Chrome's trace event format, and skips events that are not ours.
Timeline timeline_of(const Row& trace);

// To JSON for `thinwire compare --json`, and back. Damaged entries are skipped.
Row kept_timeline(const Timeline& timeline);
Timeline timeline_from(const Row& kept);

// The number of seconds that pictures side by side show: about 30 steps of the fastest run, but at
// least 3 of the slowest. 0 if there is nothing to show.
double common_span(const std::vector<Timeline>& timelines);

// How many steps ended within the first `span` seconds.
std::size_t steps_within(const Timeline& timeline, double span);

// The row in which each message is drawn: the first that is free when it begins.
std::vector<std::size_t> lanes_of(const std::vector<Span>& messages);

}  // namespace thinwire::apps
