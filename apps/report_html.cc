// report_html.cc: tables, charts and bars of a comparison, put together as a page.
// SPDX-License-Identifier: Apache-2.0
#include "apps/report_html.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <limits>
#include <optional>

#include "apps/chart_svg.h"
#include "apps/report_style.h"

namespace thinwire::apps {
namespace {

// As in the promise: equal quality is within a point of accuracy, or 3 % of perplexity.
constexpr double equal_accuracy = 0.01, equal_perplexity = 1.03;

using Number = std::optional<double>;

Number number(const Row& row, const char* key) {
  if (!row.is_object()) return {};
  const auto found = row.find(key);
  if (found == row.end() || !found->is_number()) return {};
  const auto value = found->get<double>();
  return std::isfinite(value) ? Number(value) : Number();
}

std::string words(const Row& row, const char* key) {
  if (!row.is_object()) return "";
  const auto found = row.find(key);
  if (found == row.end() || found->is_null()) return "";
  return found->is_string() ? found->get<std::string>() : found->dump();
}

Row part(const Row& row, const char* key) {
  return row.is_object() ? row.value(key, Row()) : Row();
}

std::string printed(const char* format, double value) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), format, value);
  return text.data();
}

// "1.2", "37", "1520": as many digits as a reader of a headline wants.
std::string times_text(double factor) {
  return printed(factor >= 99.5 ? "%.0f" : factor >= 9.95 ? "%.1f" : "%.2f", factor) + "\u00d7";
}

std::string percent_text(double share) { return printed("%.2f", 100 * share) + " %"; }

std::string tag(const std::string& name, const std::string& inside, const std::string& more = "") {
  return "<" + name + (more.empty() ? "" : " " + more) + ">" + inside + "</" + name + ">";
}

std::string label_of(const Row& run) {
  const std::string label = words(run, "label");
  return label.empty() ? words(run, "scheme") : label;
}

// A piece of line with the marker that ends it.
std::string key_of(std::size_t index) {
  const std::string colour = std::to_string(index % series_colours);
  return "<svg class=\"key\" viewBox=\"0 0 34 14\" aria-hidden=\"true\"><path class=\"line s" +
         colour + "\" d=\"M1 7H33\"/>" + marker(index, 17, 7) + "</svg>";
}

// ---- the headline ----

struct Measure {
  const char* key;
  const char* heading;
  std::string (*text)(double);
};

std::string loss_text(double loss) { return printed("%.4g", loss); }

constexpr std::array<Measure, 8> measures = {{
    {"accuracy", "accuracy", percent_text},
    {"perplexity", "perplexity", loss_text},
    {"loss", "loss", loss_text},
    {"bytes_per_step", "bytes per step", bytes_text},
    {"ratio", "ratio", times_text},
    {"last_ratio", "ratio at end", times_text},
    {"seconds_per_step", "time per step", seconds_text},
    {"speed", "speed", times_text},
}};

std::vector<Measure> measured(const Rows& rows) {
  std::vector<Measure> kept;
  std::copy_if(
      measures.begin(), measures.end(), std::back_inserter(kept), [&](const Measure& each) {
        return std::any_of(rows.begin(), rows.end(),
                           [&](const Row& row) { return number(row, each.key).has_value(); });
      });
  return kept;
}

std::string replicas_cell(const Row& row) {
  const std::string text = words(row, "replicas");
  const bool bad = text == "differ";
  return tag("td", bad ? tag("span", text, "class=\"bad\"") : text, "data-label=\"replicas\"");
}

// From where to where the quality went over the seeds; empty with one seed.
std::string range_text(const Row& row) {
  const std::string range = words(row, "range"), seeds = words(row, "seeds");
  if (range.empty()) return "";
  return tag("span", escaped_markup(range) + " over " + seeds + " seeds", "class=\"quiet\"");
}

std::string name_cell(const Row& row, std::size_t index) {
  const std::string scheme = escaped_markup(words(row, "scheme"));
  const std::string run = words(row, "run");
  if (run.empty()) return tag("td", key_of(index) + scheme + range_text(row));
  return tag("td", key_of(index) + escaped_markup(run) +
                       tag("span", tag("code", scheme), "class=\"quiet\"") + range_text(row));
}

std::string seeds_text(const Rows& rows) {
  const std::string seeds = rows.empty() ? "" : words(rows[0], "seeds");
  return seeds.empty() ? ""
                       : " Numbers are means over " + seeds +
                             " seeds; the curves below are those of the first.";
}

std::string headline_table(const Rows& rows) {
  const std::vector<Measure> shown = measured(rows);
  std::string head = tag("th", "scheme", "scope=\"col\""), body;
  for (const Measure& each : shown) head += tag("th", each.heading, "scope=\"col\"");
  head += tag("th", "replicas", "scope=\"col\"");
  for (std::size_t i = 0; i < rows.size(); ++i) {
    std::string line = name_cell(rows[i], i);
    for (const Measure& each : shown) {
      const Number value = number(rows[i], each.key);
      line += tag("td", value ? each.text(*value) : "\u2013",
                  "data-label=\"" + std::string(each.heading) + "\"");
    }
    body += tag("tr", line + replicas_cell(rows[i])) + "\n";
  }
  return tag("table", tag("thead", tag("tr", head)) + "\n" + tag("tbody", body)) + "\n";
}

bool as_good(const Row& row, const Row& first) {
  const Number accuracy = number(row, "accuracy"), base = number(first, "accuracy");
  if (accuracy && base) return *accuracy >= *base - equal_accuracy;
  const Number perplexity = number(row, "perplexity"), other = number(first, "perplexity");
  return perplexity && other && *perplexity <= *other * equal_perplexity;
}

// The leanest run that is as good as the first.
const Row* winner(const Rows& rows) {
  const Row* best = nullptr;
  for (std::size_t i = 1; i < rows.size(); ++i) {
    const Number ratio = number(rows[i], "ratio");
    if (!ratio || *ratio <= 1 || !as_good(rows[i], rows[0])) continue;
    if (best == nullptr || *ratio > *number(*best, "ratio")) best = &rows[i];
  }
  return best;
}

std::string name_of(const Row& row) {
  const std::string run = words(row, "run");
  return escaped_markup(run.empty() ? words(row, "scheme") : run);
}

std::string quality_text(const Row& row) {
  if (const Number accuracy = number(row, "accuracy")) {
    return percent_text(*accuracy) + " accuracy";
  }
  return "perplexity " + loss_text(number(row, "perplexity").value_or(0));
}

std::string lead(const Rows& rows) {
  if (rows.size() < 2) return "";
  const Row* best = winner(rows);
  if (best == nullptr) return "";
  std::string text = tag("strong", name_of(*best)) + " ends at " + quality_text(*best) +
                     ", against " + quality_text(rows[0]) + " of " + name_of(rows[0]) +
                     ", and sends " +
                     tag("strong", times_text(*number(*best, "ratio")) + " fewer bytes");
  if (const Number speed = number(*best, "speed")) {
    text += " at " + tag("strong", times_text(*speed) + " the speed");
  }
  return tag("p", text + ".", "class=\"lead\"") + "\n";
}

// ---- the charts ----

struct View {
  const char* key;  // of the x axis
  const char* title;
  const char* x_title;
  Unit unit;
  bool log;
};

constexpr std::array<View, 3> views = {{
    {"step", "Loss against steps", "step", Unit::plain, false},
    {"bytes_total", "Loss against bytes", "sent by a worker so far", Unit::bytes, true},
    {"seconds_total", "Loss against time", "time in training", Unit::seconds, false},
}};

Series series_of(const Row& run, std::size_t index, const View& view) {
  Series series{label_of(run), index, {}};
  for (const Row& row : part(run, "rows")) {
    const Number x = number(row, view.key);
    if (!x) continue;
    // A loss that became infinite is no number in JSON: the line ends there.
    const double gap = std::numeric_limits<double>::quiet_NaN();
    series.points.push_back({*x, number(row, "loss").value_or(gap)});
  }
  return series;
}

std::string figure(const Row& runs, const View& view) {
  Chart chart{view.title, view.x_title, "training loss", view.unit, view.log, {}};
  for (std::size_t i = 0; i < runs.size(); ++i) {
    chart.series.push_back(series_of(runs[i], i, view));
  }
  return tag("figure", tag("h3", view.title) + line_chart(chart)) + "\n";
}

std::string legend(const Row& runs) {
  std::string items;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    items += tag("li", key_of(i) + escaped_markup(label_of(runs[i])));
  }
  return tag("ul", items, "class=\"legend\"") + "\n";
}

std::string charts(const Row& runs) {
  std::string figures;
  for (const View& view : views) figures += figure(runs, view);
  return tag("h2", "How the loss falls") + "\n" + legend(runs) +
         tag("div", figures, "class=\"charts\"") + "\n";
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

std::string share(double part, double whole) { return printed("%.3f", 100 * part / whole) + "%"; }

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

// What the runs have in common, as train wrote it: "workers 4, model mlp, ..."
std::string training_text(const Row& runs) {
  if (runs.empty()) return "";
  const Row settings = part(runs[0], "settings");
  if (!settings.is_object()) return "";
  std::string text;
  for (const auto& [key, value] : settings.items()) {
    if (key == "scheme") continue;
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

Rows headline(const Row& runs) {
  Rows rows;
  for (const Row& run : runs) {
    Row row = Row::object();
    if (label_of(run) != words(run, "scheme")) row["run"] = label_of(run);
    row["scheme"] = words(run, "scheme");
    const Row final = part(run, "final");
    if (final.is_object()) row.update(final);
    const Number first = number(rows.empty() ? row : rows[0], "seconds_per_step");
    const Number own = number(row, "seconds_per_step");
    if (first && own && *own > 0) row["speed"] = *first / *own;
    // A language model has both; perplexity is what people compare.
    if (row.contains("perplexity")) row.erase("accuracy");
    const Row same = part(row, "replicas_identical");
    if (same.is_boolean()) row["replicas"] = same.get<bool>() ? "identical" : "differ";
    rows.push_back(std::move(row));
  }
  return rows;
}

std::string report_html(const Row& comparison) {
  Row runs = part(comparison, "runs");
  if (!runs.is_array()) runs = Row::array();
  const Rows rows = headline(runs);
  return "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
         "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n"
         "<title>thinwire: schemes compared</title>\n<style>" +
         std::string(report_style) + "</style>\n</head>\n<body>\n<main>\n" +
         tag("h1", "Gradient compression, schemes compared") + "\n" + lead(rows) +
         notice(comparison) + tag("h2", "At the end") + "\n" + headline_table(rows) +
         tag("p",
             "Bytes are what one worker's encoders wrote; the ratio is to the same gradients as "
             "f32. Speed is in steps per second, against the first row." +
                 seeds_text(rows),
             "class=\"quiet\"") +
         "\n" + charts(runs) + bars(runs) + setting(comparison, runs) +
         "</main>\n</body>\n</html>\n";
}

}  // namespace thinwire::apps
