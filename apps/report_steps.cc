// report_steps.cc: timelines side by side, and bars of the stages of a step.
// SPDX-License-Identifier: Apache-2.0
#include "apps/report_steps.h"

#include <algorithm>
#include <array>

#include "apps/chart_svg.h"
#include "apps/run_clock.h"
#include "apps/timeline_svg.h"

namespace thinwire::apps {
namespace {

// ---- what overlaps ----

std::string timeline_figure(const Row& run, const Timeline& timeline, double span) {
  if (timeline.empty()) return "";
  const std::string name = tag("b", escaped_markup(label_of(run))) +
                           tag("span", timeline_words(timeline, span), "class=\"quiet\"");
  return tag("figure", tag("div", name, "class=\"name\"") + timeline_picture(timeline, span)) +
         "\n";
}

// ---- the time of a step ----

struct Stage {
  const char* key;
  const char* name;
};

constexpr std::array<Stage, 4> stages = {{
    {"compute_seconds", "compute"},
    {"encode_seconds", "encode"},
    {"wait_seconds", "exchange"},
    {"decode_seconds", "decode"},
}};

double stage_sum(const Row& final) {
  double sum = 0;
  for (const Stage& stage : stages) sum += number(final, stage.key).value_or(0);
  return sum;
}

double longest(const Row& runs) {
  double most = 0;
  for (const Row& run : runs) {
    const Row final = part(run, "final");
    if (stage_sum(final) == 0) continue;
    most = std::max({most, stage_sum(final), number(final, "seconds_per_step").value_or(0)});
  }
  return most;
}

std::string bar(const Row& final, double whole) {
  std::string svg;
  double from = 0;
  for (const Stage& stage : stages) {
    const double seconds = number(final, stage.key).value_or(0);
    svg += "<rect class=\"" + std::string(stage.name) + "\" height=\"22\" x=\"" +
           share(from, whole) + "\" width=\"" + share(seconds, whole) + "\">" +
           tag("title", std::string(stage.name) + " " + seconds_text(seconds)) + "</rect>";
    from += seconds;
  }
  if (const Number step = number(final, "seconds_per_step")) {
    const std::string x = share(*step, whole);
    svg += "<line class=\"mark\" y1=\"-4\" y2=\"26\" x1=\"" + x + "\" x2=\"" + x + "\"/>";
  }
  return tag("svg", svg, "class=\"bar\" role=\"img\" aria-label=\"time of a step by stage\"");
}

std::string split_text(const Row& final) {
  std::string text;
  for (const Stage& stage : stages) {
    const Number seconds = number(final, stage.key);
    if (!seconds) continue;
    text +=
        (text.empty() ? "" : " \u00b7 ") + std::string(stage.name) + " " + seconds_text(*seconds);
  }
  return text;
}

std::string bar_figure(const Row& run, double whole) {
  const Row final = part(run, "final");
  if (stage_sum(final) == 0) return "";
  const Number step = number(final, "seconds_per_step");
  const std::string name =
      tag("b", escaped_markup(label_of(run))) +
      tag("span", step ? seconds_text(*step) + " per step" : "", "class=\"quiet\"");
  return tag("figure", tag("div", name, "class=\"name\"") + bar(final, whole) +
                           tag("div", split_text(final), "class=\"quiet\"")) +
         "\n";
}

std::string stage_legend() {
  std::string items;
  for (const Stage& stage : stages) {
    const std::string rect =
        "<rect class=\"" + std::string(stage.name) + "\" width=\"12\" height=\"12\" rx=\"2\"/>";
    items += tag("li", tag("svg", rect, "class=\"swatch\" aria-hidden=\"true\"") + stage.name);
  }
  return tag("ul", items, "class=\"legend\"") + "\n";
}

}  // namespace

std::string timeline_section(const Row& runs) {
  std::vector<Timeline> all;
  for (const Row& run : runs) all.push_back(timeline_from(part(run, "timeline")));
  const double span = common_span(all);
  if (span <= 0) return "";
  std::string figures;
  for (std::size_t i = 0; i < all.size(); ++i) figures += timeline_figure(runs[i], all[i], span);
  return tag("h2", "What a worker does while messages are in flight") + "\n" +
         tag("p",
             "Rank 0 over the same period in every run. The upper lane shows its steps. The lanes "
             "below show its messages, each from the start of the exchange until the other "
             "workers' parts have arrived. The period begins after the first message has arrived. "
             "Where the upper lane is blank, the worker evaluates or reports, or the trace has "
             "ended.",
             "class=\"quiet\"") +
         "\n" + timeline_legend(all) + tag("div", figures, "class=\"bars\"") + "\n";
}

std::string stage_section(const Row& runs) {
  const double whole = longest(runs);
  if (whole == 0 || clock_of(runs) != RunClock::measured) return "";  // nobody took the wait
  std::string figures;
  for (const Row& run : runs) figures += bar_figure(run, whole);
  return tag("h2", "Where a step's time goes") + "\n" +
         tag("p",
             "Per step, mean over the workers. Encode, exchange (waiting for the network) and "
             "decode "
             "overlap with backward, so a bar may be longer than its step. The vertical mark is "
             "the measured time of a step, including the weight update.",
             "class=\"quiet\"") +
         "\n" + stage_legend() + tag("div", figures, "class=\"bars\"") + "\n";
}

}  // namespace thinwire::apps
