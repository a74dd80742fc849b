// report_html.cc: tables, charts and bars of a comparison, put together as a page.
// SPDX-License-Identifier: Apache-2.0
#include "apps/report_html.h"

#include <algorithm>
#include <array>
#include <limits>

#include "apps/chart_svg.h"
#include "apps/report_parts.h"
#include "apps/report_style.h"
#include "apps/report_table.h"
#include "apps/timeline_svg.h"

namespace thinwire::apps {
namespace {

// ---- the charts ----

struct View {
  const char* key;  // of the x axis
  const char* title;
  const char* x_title;
  Unit unit;
  bool log;
};

constexpr std::array<View, 3> views = {{
    {"step", "steps", "step", Unit::plain, false},
    {"bytes_total", "bytes", "sent by a worker so far", Unit::bytes, true},
    {"seconds_total", "time", "time in training", Unit::seconds, false},
}};

// What is drawn against them.
struct Curve {
  const char* key;
  const char* heading;
  const char* name;
  const char* y_title;
};

constexpr std::array<Curve, 3> curves = {{
    {"loss", "How the loss falls", "Loss", "training loss"},
    {"perplexity", "How the perplexity falls", "Perplexity", "perplexity of the test set"},
    {"accuracy", "How the accuracy rises", "Accuracy", "accuracy on the test set"},
}};

Series series_of(const Row& run, std::size_t index, const View& view, const Curve& curve) {
  Series series{label_of(run), index, {}};
  const bool rare = std::string(curve.key) != "loss";  // only some rows are evaluations
  for (const Row& row : part(run, "rows")) {
    const Number x = number(row, view.key), y = number(row, curve.key);
    if (!x || (rare && !y)) continue;
    // A loss that became infinite is no number in JSON: the line ends there.
    series.points.push_back({*x, y.value_or(std::numeric_limits<double>::quiet_NaN())});
  }
  return series;
}

std::string figure(const Row& runs, const View& view, const Curve& curve) {
  const std::string title = std::string(curve.name) + " against " + view.title;
  Chart chart{title, view.x_title, curve.y_title, view.unit, view.log, {}};
  for (std::size_t i = 0; i < runs.size(); ++i) {
    chart.series.push_back(series_of(runs[i], i, view, curve));
  }
  return tag("figure", tag("h3", title) + line_chart(chart)) + "\n";
}

std::string legend(const Row& runs) {
  std::string items;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    items += tag("li", key_of(i) + escaped_markup(label_of(runs[i])));
  }
  return tag("ul", items, "class=\"legend\"") + "\n";
}

// A value at the end alone is in the table already.
bool drawn(const Row& runs, const Curve& curve) {
  return std::any_of(runs.begin(), runs.end(), [&](const Row& run) {
    const Row rows = part(run, "rows");
    return std::count_if(rows.begin(), rows.end(),
                         [&](const Row& row) { return number(row, curve.key).has_value(); }) > 1;
  });
}

std::string charts(const Row& runs) {
  const auto set = [&](const Curve& curve) {
    std::string figures;
    for (const View& view : views) figures += figure(runs, view, curve);
    return tag("h2", curve.heading) + "\n" + legend(runs) +
           tag("div", figures, "class=\"charts\"") + "\n";
  };
  // People compare the perplexity of language models, not their accuracy.
  const Curve& quality = drawn(runs, curves[1]) ? curves[1] : curves[2];
  return set(curves[0]) + (drawn(runs, quality) ? set(quality) : "");
}

// ---- what overlaps ----

std::string timeline_figure(const Row& run, const Timeline& timeline, double span) {
  if (timeline.empty()) return "";
  const std::string name = tag("b", escaped_markup(label_of(run))) +
                           tag("span", timeline_words(timeline, span), "class=\"quiet\"");
  return tag("figure", tag("div", name, "class=\"name\"") + timeline_picture(timeline, span)) +
         "\n";
}

std::string timelines(const Row& runs) {
  std::vector<Timeline> all;
  for (const Row& run : runs) all.push_back(timeline_from(part(run, "timeline")));
  const double span = common_span(all);
  if (span <= 0) return "";
  std::string figures;
  for (std::size_t i = 0; i < all.size(); ++i) figures += timeline_figure(runs[i], all[i], span);
  return tag("h2", "What a worker does while messages travel") + "\n" +
         tag("p",
             "Rank 0 over the same stretch of time in every run: in the upper lane its steps, in "
             "those below its messages, from the start of the exchange until the other workers' "
             "parts are there. It begins after the first message has arrived; where the upper "
             "lane is blank the worker evaluates or reports, or the trace has ended.",
             "class=\"quiet\"") +
         "\n" + timeline_legend(all) + tag("div", figures, "class=\"bars\"") + "\n";
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

std::string bars(const Row& runs) {
  const double whole = longest(runs);
  if (whole == 0) return "";
  std::string figures;
  for (const Row& run : runs) figures += bar_figure(run, whole);
  return tag("h2", "Where a step's time goes") + "\n" +
         tag("p",
             "Per step, mean over the workers. Encode, exchange (waiting for the network) and "
             "decode "
             "run beside backward, so a bar may be longer than its step. The upright mark is the "
             "step as measured, with the update of the weights.",
             "class=\"quiet\"") +
         "\n" + stage_legend() + tag("div", figures, "class=\"bars\"") + "\n";
}

// ---- the setting ----

std::string entry(const std::string& name, const std::string& value, bool code = false) {
  if (value.empty()) return "";
  const std::string text = escaped_markup(value);
  return tag("dt", name) + tag("dd", code ? tag("code", text) : text) + "\n";
}

std::string machine_text(const Row& comparison) {
  const std::string cores = words(comparison, "cores");
  return words(comparison, "machine") + (cores.empty() ? "" : ", " + cores + " cores");
}

std::string link_text(const Row& comparison) {
  const std::string link = words(comparison, "link");
  return link.empty() ? "as the machine has it, not emulated"
                      : link + ", emulated: workers on one machine, messages delayed by our code";
}

bool in_common(const Row& runs, const std::string& key, const Row& value) {
  return std::all_of(runs.begin(), runs.end(), [&](const Row& run) {
    return part(part(run, "settings"), key.c_str()) == value;
  });
}

// What the runs have in common, as train wrote it: "workers 4, model mlp, ..."
std::string training_text(const Row& runs) {
  if (runs.empty()) return "";
  const Row settings = part(runs[0], "settings");
  if (!settings.is_object()) return "";
  std::string text;
  for (const auto& [key, value] : settings.items()) {
    if (key == "scheme" || !in_common(runs, key, value)) continue;
    text += (text.empty() ? "" : ", ") + key + " " + words(settings, key.c_str());
  }
  return text;
}

std::string setting(const Row& comparison, const Row& runs) {
  std::string list = entry("command", words(comparison, "command"), true) +
                     entry("training", training_text(runs)) + entry("link", link_text(comparison)) +
                     entry("machine", machine_text(comparison)) +
                     entry("date", words(comparison, "date")) +
                     entry("version", words(comparison, "version"));
  return tag("h2", "The setting") + "\n" + tag("dl", list) + "\n";
}

std::string notice(const Row& comparison) {
  const std::string link = words(comparison, "link");
  if (link.empty()) return "";
  return tag("p",
             tag("strong", "Emulated link: " + escaped_markup(link)) +
                 ". Bytes are counted as sent; times include the delays of a link that is not "
                 "there.",
             "class=\"warn\"") +
         "\n";
}

}  // namespace

std::string report_html(const Row& comparison) {
  Row runs = part(comparison, "runs");
  if (!runs.is_array()) runs = Row::array();
  const bool methods = are_methods(runs);
  return "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
         "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n"
         "<title>thinwire: " +
         std::string(methods ? "methods" : "schemes") + " compared</title>\n<style>" +
         report_palette + report_style + timeline_style + "</style>\n</head>\n<body>\n<main>\n" +
         tag("h1", methods ? "Distributed training, methods compared"
                           : "Gradient compression, schemes compared") +
         "\n" + lead(runs) + notice(comparison) + tag("h2", "At the end") + "\n" +
         headline_table(runs) + charts(runs) + timelines(runs) + bars(runs) +
         setting(comparison, runs) + "</main>\n</body>\n</html>\n";
}

}  // namespace thinwire::apps
