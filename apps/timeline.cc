// timeline.cc: turns the events of a trace into spans, and selects those to show.
// SPDX-License-Identifier: Apache-2.0
#include "apps/timeline.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <optional>

#include "apps/report_parts.h"

namespace thinwire::apps {
namespace {

constexpr std::size_t warm_up = 3;  // steps
constexpr std::size_t shown = 30;   // steps of the fastest
constexpr double shown_of_slowest = 3;
constexpr std::array<const char*, 5> work = {"forward", "backward", "update", "take in", "wait"};

bool is_work(const std::string& name) {
  return std::find(work.begin(), work.end(), name) != work.end();
}

std::optional<Span> span_of(const Row& event) {
  const Row step = part(part(event, "args"), "step");
  const Number begin = number(event, "ts"), length = number(event, "dur");
  if (words(event, "ph") != "X" || !begin || !length || *length < 0) return {};
  if (!step.is_number_unsigned()) return {};
  return Span{words(event, "name"), step.get<std::uint64_t>(), *begin * 1e-6,
              (*begin + *length) * 1e-6};
}

void by_time(std::vector<Span>& spans) {
  std::stable_sort(spans.begin(), spans.end(),
                   [](const Span& a, const Span& b) { return a.from < b.from; });
}

Timeline whole(const Row& trace) {
  const Row events = part(trace, "traceEvents");
  if (!events.is_array()) return {};
  Timeline timeline;
  std::map<std::uint64_t, Span> rounds;
  for (const Row& event : events) {
    std::optional<Span> span = span_of(event);
    if (span && is_work(span->name)) timeline.compute.push_back(*span);
    if (!span || span->name != "exchange") continue;
    span->name = "message";
    Span& round = rounds.try_emplace(span->step, *span).first->second;
    round.from = std::min(round.from, span->from);
    round.to = std::max(round.to, span->to);
  }
  for (const auto& [step, message] : rounds) timeline.messages.push_back(message);
  by_time(timeline.compute);
  by_time(timeline.messages);
  return timeline;
}

struct Stretch {
  double from, to;
};

// The start and end of each step, by number.
std::vector<Stretch> steps_of(const std::vector<Span>& compute) {
  std::map<std::uint64_t, Stretch> steps;
  for (const Span& span : compute) {
    Stretch& step = steps.try_emplace(span.step, Stretch{span.from, span.to}).first->second;
    step = {std::min(step.from, span.from), std::max(step.to, span.to)};
  }
  std::vector<Stretch> result;
  for (const auto& [number, step] : steps) result.push_back(step);
  return result;
}

double start_of(const Timeline& timeline) {
  const std::vector<Stretch> steps = steps_of(timeline.compute);
  const std::size_t usual = std::min(warm_up, steps.size() - 1);
  const double arrived = timeline.messages.empty() ? 0 : timeline.messages.front().to;
  for (std::size_t i = usual; i + warm_up < steps.size(); ++i) {
    if (steps[i].from >= arrived) return steps[i].from;
  }
  return steps[usual].from;  // the trace is too short for a better choice
}

void start_at(std::vector<Span>& spans, double start) {
  std::erase_if(spans, [&](const Span& span) { return span.to <= start; });
  for (Span& span : spans) {
    span.from -= start;
    span.to -= start;
  }
}

Row kept(const std::vector<Span>& spans) {
  const auto brief = [](double seconds) { return std::round(seconds * 1e7) / 1e7; };
  Row rows = Row::array();
  for (const Span& span : spans) {
    rows.push_back(Row::array({span.name, span.step, brief(span.from), brief(span.to)}));
  }
  return rows;
}

std::vector<Span> spans_from(const Row& rows) {
  std::vector<Span> spans;
  if (!rows.is_array()) return spans;
  for (const Row& row : rows) {
    if (!row.is_array() || row.size() != 4 || !row[0].is_string()) continue;
    if (!row[1].is_number_unsigned() || !row[2].is_number() || !row[3].is_number()) continue;
    const Span span{row[0], row[1], row[2], row[3]};
    if (std::isfinite(span.from) && std::isfinite(span.to) && span.from <= span.to)
      spans.push_back(span);
  }
  by_time(spans);
  return spans;
}

// Mean over the steps that are shown.
double step_seconds(const Timeline& timeline) {
  const std::vector<Stretch> steps = steps_of(timeline.compute);
  const std::size_t count = std::min(shown, steps.size());
  return (steps[count - 1].to - steps[0].from) / static_cast<double>(count);
}

}  // namespace

Timeline timeline_of(const Row& trace) {
  Timeline timeline = whole(trace);
  if (timeline.empty()) return {};
  const double start = start_of(timeline);
  start_at(timeline.compute, start);
  start_at(timeline.messages, start);
  return timeline;
}

Row kept_timeline(const Timeline& timeline) {
  return {{"compute", kept(timeline.compute)}, {"messages", kept(timeline.messages)}};
}

Timeline timeline_from(const Row& kept) {
  Timeline timeline{spans_from(part(kept, "compute")), spans_from(part(kept, "messages"))};
  std::erase_if(timeline.compute, [](const Span& span) { return !is_work(span.name); });
  return timeline;
}

double common_span(const std::vector<Timeline>& timelines) {
  double fastest = std::numeric_limits<double>::infinity(), slowest = 0, end = 0;
  for (const Timeline& timeline : timelines) {
    if (timeline.empty()) continue;
    fastest = std::min(fastest, step_seconds(timeline));
    slowest = std::max(slowest, step_seconds(timeline));
    end = std::max(end, timeline.compute.back().to);
  }
  const double wanted = std::max(static_cast<double>(shown) * fastest, shown_of_slowest * slowest);
  return std::min(wanted, end);
}

std::size_t steps_within(const Timeline& timeline, double span) {
  const std::vector<Stretch> steps = steps_of(timeline.compute);
  return static_cast<std::size_t>(std::count_if(
      steps.begin(), steps.end(), [&](const Stretch& step) { return step.to <= span; }));
}

std::vector<std::size_t> lanes_of(const std::vector<Span>& messages) {
  std::vector<double> busy_until;
  std::vector<std::size_t> lanes;
  for (const Span& message : messages) {
    const auto free = std::find_if(busy_until.begin(), busy_until.end(),
                                   [&](double until) { return until <= message.from; });
    lanes.push_back(static_cast<std::size_t>(free - busy_until.begin()));
    if (free == busy_until.end()) {
      busy_until.push_back(message.to);
    } else {
      *free = message.to;
    }
  }
  return lanes;
}

}  // namespace thinwire::apps
