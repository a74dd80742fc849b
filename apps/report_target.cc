// report_target.cc: the verdict, and tables of the cost of a result.
// SPDX-License-Identifier: Apache-2.0
#include "apps/report_target.h"

#include <algorithm>

#include "apps/chart_svg.h"
#include "apps/report_parts.h"
#include "apps/report_table.h"
#include "apps/target.h"

namespace thinwire::apps {
namespace {

std::string heading_row(const std::vector<std::string>& headings) {
  std::string cells;
  for (const std::string& each : headings) cells += tag("th", each, "scope=\"col\"");
  return tag("thead", tag("tr", cells)) + "\n";
}

std::string labelled(const std::string& heading, const std::string& inside,
                     const std::string& more = "") {
  return tag("td", inside, "data-label=\"" + heading + "\"" + more);
}

std::string run_cell(const Row& run, std::size_t index) {
  return tag("td", key_of(index) + escaped_markup(label_of(run)));
}

// A bar as long as the mean, with a whisker over the seeds.
std::string meter(const Spread& spread, double whole, std::size_t index) {
  const std::string colour = "s" + std::to_string(index % series_colours);
  std::string svg = "<rect class=\"amount " + colour + "\" height=\"8\" rx=\"2\" width=\"" +
                    share(spread.mean, whole) + "\"/>";
  if (spread.high > spread.low) {
    svg += "<line class=\"whisker\" y1=\"4\" y2=\"4\" x1=\"" + share(spread.low, whole) +
           "\" x2=\"" + share(spread.high, whole) + "\"/>";
  }
  return tag("svg", svg, "class=\"meter\" aria-hidden=\"true\"");
}

std::string amount_cell(const std::string& heading, const Spread& spread, double whole,
                        std::size_t index, std::string (*text)(double)) {
  const std::string low = text(spread.low), high = text(spread.high);
  const std::string range =
      low == high ? "" : " " + tag("span", low + " \u2013 " + high, "class=\"quiet\"");
  return labelled(heading, tag("div", text(spread.mean) + range) + meter(spread, whole, index),
                  " class=\"amount\"");
}

std::string gain_cell(const std::string& heading, double basis, double own) {
  return labelled(heading, factor_digits(basis / own) + "\u00d7", " class=\"whole\"");
}

struct Costs {
  std::vector<std::optional<Reach>> runs;
  double seconds = 0, bytes = 0;  // largest of any run
};

Costs costs_of(const Row& runs, const Target& target) {
  Costs costs;
  for (const Row& run : runs) {
    costs.runs.push_back(reach_of(run, target));
    if (!costs.runs.back()) continue;
    if (const auto& seconds = costs.runs.back()->seconds)
      costs.seconds = std::max(costs.seconds, seconds->high);
    costs.bytes = std::max(costs.bytes, costs.runs.back()->bytes.high);
  }
  return costs;
}

std::string missed_cell(const Row& run, const Target& target) {
  const std::string columns = target.clock == RunClock::none ? "3" : "5";
  return tag("td", shortfall(run, target), "class=\"missed\" colspan=\"" + columns + "\"");
}

std::string count_text(double count) { return printed("%.6g", count); }

std::string reach_cells(const Reach& own, const Reach& basis, const Costs& costs,
                        std::size_t index) {
  const std::string low = count_text(own.steps.low), high = count_text(own.steps.high);
  const std::string times =
      own.seconds ? amount_cell("time", *own.seconds, costs.seconds, index, duration_text) +
                        gain_cell("sooner", basis.seconds->mean, own.seconds->mean)
                  : "";
  return labelled("steps", low == high ? low : low + " \u2013 " + high, " class=\"whole\"") +
         times + amount_cell("bytes per worker", own.bytes, costs.bytes, index, bytes_text) +
         gain_cell("fewer", basis.bytes.mean, own.bytes.mean);
}

// ---- a whole training ----

struct Pace {
  double steps = 0, seconds = 0, bytes = 0;  // totals of the run
  double step_seconds = 0, step_bytes = 0;   // per step in its second half, after any warm-up
};

std::optional<Pace> pace_of(const Row& run) {
  const Row final = part(run, "final");
  const Number steps = number(final, "steps"), seconds = step_seconds(final),
               bytes = number(final, "bytes_per_step");
  if (!steps || *steps < 1 || !seconds || !bytes) return {};
  Pace pace{*steps, *steps * *seconds, *steps * *bytes, *seconds, *bytes};
  const Curve curve = mean_curve(run, "loss");
  const auto half = std::find_if(curve.begin(), curve.end(),
                                 [&](const Sample& sample) { return 2 * sample.step >= *steps; });
  if (half == curve.end() || half->step >= curve.back().step) return pace;
  const double rest = curve.back().step - half->step;
  const double late_seconds = (curve.back().seconds - half->seconds) / rest,
               late_bytes = (curve.back().bytes - half->bytes) / rest;
  if (late_seconds > 0) pace.step_seconds = late_seconds;
  if (late_bytes > 0) pace.step_bytes = late_bytes;
  return pace;
}

double longer_than(double steps) {
  double longer = 1e5;
  while (longer < 2 * steps) longer *= 10;
  return longer;
}

// "100,000"
std::string grouped(double count) {
  std::string text = printed("%.0f", count);
  for (std::size_t at = text.size(); at > 3; at -= 3) text.insert(at - 3, ",");
  return text;
}

std::string cost_cells(const Pace& pace, double longer) {
  const double more = longer - pace.steps;
  return labelled("steps", grouped(pace.steps), " class=\"whole\"") +
         labelled("bytes", bytes_text(pace.bytes)) + labelled("time", duration_text(pace.seconds)) +
         labelled(grouped(longer) + " steps, bytes",
                  bytes_text(pace.bytes + more * pace.step_bytes), " class=\"guess\"") +
         labelled(grouped(longer) + " steps, time",
                  duration_text(pace.seconds + more * pace.step_seconds), " class=\"guess\"");
}

}  // namespace

std::string lead(const Row& runs) {
  std::string text;
  for (const std::string& sentence : verdict(runs)) {
    text += tag("p", escaped_markup(sentence), text.empty() ? "class=\"lead\"" : "") + "\n";
  }
  return text.empty() ? "" : tag("div", text, "class=\"verdict\"") + "\n";
}

std::string target_section(const Row& runs) {
  const std::optional<Target> target = target_of(runs);
  if (!target) return "";
  const Costs costs = costs_of(runs, *target);
  const std::optional<Reach>& basis = costs.runs[basis_of(runs)];
  if (!basis) return "";
  std::string body;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    body += tag("tr", run_cell(runs[i], i) + (costs.runs[i]
                                                  ? reach_cells(*costs.runs[i], *basis, costs, i)
                                                  : missed_cell(runs[i], *target))) +
            "\n";
  }
  const std::string kind = are_methods(runs) ? "method" : "scheme";
  const std::string note =
      "The target is the best value reached by all runs that end as well as " +
      label_of(runs[basis_of(runs)]) +
      " (within a point of accuracy or word error rate, 3 % of perplexity, or 0.03 of "
      "loss). " +
      target_note(*target);
  const std::string time = time_word(target->clock);
  const bool timed = target->clock != RunClock::none;
  std::vector<std::string> headings = {kind, "steps", "bytes per worker", "fewer"};
  if (timed) headings.insert(headings.begin() + 2, {time, "sooner"});
  return tag("h2", (timed ? "Time and bytes to " : "Bytes to ") + target->str()) + "\n" +
         tag("table", heading_row(headings) + tag("tbody", body)) + "\n" +
         tag("p", escaped_markup(note), "class=\"quiet\"") + "\n";
}

std::string cost_section(const Row& runs) {
  double most = 0;
  for (const Row& run : runs) {
    if (const auto pace = pace_of(run)) most = std::max(most, pace->steps);
  }
  if (most == 0) return "";
  const double longer = longer_than(most);
  std::string body;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const std::optional<Pace> pace = pace_of(runs[i]);
    if (pace) body += tag("tr", run_cell(runs[i], i) + cost_cells(*pace, longer)) + "\n";
  }
  const std::string kind = are_methods(runs) ? "method" : "scheme",
                    time = time_word(clock_of(runs));
  return tag("h2", "A whole training") + "\n" +
         tag("table",
             heading_row({kind, "steps", "bytes", time, "bytes of " + grouped(longer) + " steps",
                          time + " of " + grouped(longer) + " steps"}) +
                 tag("tbody", body)) +
         "\n" +
         tag("p",
             "Steps, bytes and time are those of the run: bytes of one worker, time in training. "
             "The two columns for " +
                 grouped(longer) +
                 " steps are extrapolated: the steps that were not run take the mean bytes and "
                 "time of the run's second half.",
             "class=\"quiet\"") +
         "\n";
}

}  // namespace thinwire::apps
