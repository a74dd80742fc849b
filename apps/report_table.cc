// report_table.cc: the headline of a comparison: one row per run, and what it comes to.
// SPDX-License-Identifier: Apache-2.0
#include "apps/report_table.h"

#include <algorithm>
#include <array>

#include "apps/chart_svg.h"
#include "apps/report_parts.h"

namespace thinwire::apps {
namespace {

// As in the promise: equal quality is within a point of accuracy, or 3 % of perplexity.
constexpr double equal_accuracy = 0.01, equal_perplexity = 1.03;

// "1.2", "37", "1520": as many digits as a reader of a headline wants.
std::string times_text(double factor) {
  return printed(factor >= 99.5 ? "%.0f" : factor >= 9.95 ? "%.1f" : "%.2f", factor) + "\u00d7";
}

std::string percent_text(double share) { return printed("%.2f", 100 * share) + " %"; }

struct Measure {
  const char* key;
  const char* heading;
  std::string (*text)(double);
};

std::string loss_text(double loss) { return printed("%.4g", loss); }

constexpr std::array<Measure, 9> measures = {{
    {"accuracy", "accuracy", percent_text},
    {"perplexity", "perplexity", loss_text},
    {"loss", "loss", loss_text},
    {"bytes_per_step", "bytes per step", bytes_text},
    {"ratio", "ratio", times_text},
    {"last_ratio", "ratio at end", times_text},
    {"seconds_per_step", "time per step", seconds_text},
    {"speed", "speed", times_text},
    {"speed_up", "speed-up", times_text},
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

std::string name_of(const Row& row) {
  const std::string run = words(row, "run");
  return escaped_markup(run.empty() ? words(row, "scheme") : run);
}

std::string seeds_text(const Rows& rows) {
  const std::string seeds = rows.empty() ? "" : words(rows[0], "seeds");
  return seeds.empty() ? ""
                       : " Numbers are means over " + seeds +
                             " seeds; the curves below are those of the first.";
}

std::string note(const Row& runs, const Rows& rows) {
  const std::string speed =
      are_methods(runs)
          ? "Speed-up is in steps per second, against " + name_of(rows[basis_of(runs)]) +
                ". The first steps of a delayed method wait for nothing, and what still travels "
                "after its last step is not in its time: only runs much longer than the delay "
                "are fair."
          : "Speed is in steps per second, against the first row.";
  return tag("p",
             "Bytes are what one worker's encoders wrote; the ratio is to the same gradients as "
             "f32. " +
                 speed + seeds_text(rows),
             "class=\"quiet\"") +
         "\n";
}

bool as_good(const Row& row, const Row& first) {
  const Number accuracy = number(row, "accuracy"), base = number(first, "accuracy");
  if (accuracy && base) return *accuracy >= *base - equal_accuracy;
  const Number perplexity = number(row, "perplexity"), other = number(first, "perplexity");
  return perplexity && other && *perplexity <= *other * equal_perplexity;
}

// The one with most of `gain` (the leanest, the fastest) that is as good as the basis.
const Row* winner(const Rows& rows, const Row& basis, const char* gain) {
  const Row* best = nullptr;
  for (const Row& row : rows) {
    const Number own = number(row, gain);
    if (&row == &basis || !own || *own <= 1 || !as_good(row, basis)) continue;
    if (best == nullptr || *own > *number(*best, gain)) best = &row;
  }
  return best;
}

std::string quality_text(const Row& row) {
  if (const Number accuracy = number(row, "accuracy")) {
    return percent_text(*accuracy) + " accuracy";
  }
  return "perplexity " + loss_text(number(row, "perplexity").value_or(0));
}

std::string gain_text(const Row& best, bool methods) {
  const Number speed = number(best, methods ? "speed_up" : "speed");
  if (methods) return "makes " + tag("strong", times_text(*speed) + " the steps per second");
  return "sends " + tag("strong", times_text(*number(best, "ratio")) + " fewer bytes") +
         (speed ? " at " + tag("strong", times_text(*speed) + " the speed") : "");
}

void add_speed(Rows& rows, const Row& basis, const char* key) {
  const Number base = number(basis, "seconds_per_step");
  for (Row& row : rows) {
    const Number own = number(row, "seconds_per_step");
    if (base && own && *own > 0) row[key] = *base / *own;
  }
}

// Index of the run that is marked, or their number.
std::size_t marked(const Row& runs) {
  return static_cast<std::size_t>(
      std::find_if(runs.begin(), runs.end(),
                   [](const Row& run) { return part(run, "basis") == Row(true); }) -
      runs.begin());
}

}  // namespace

bool are_methods(const Row& runs) { return marked(runs) < runs.size(); }

std::size_t basis_of(const Row& runs) { return are_methods(runs) ? marked(runs) : 0; }

std::string key_of(std::size_t index) {
  const std::string colour = std::to_string(index % series_colours);
  return "<svg class=\"key\" viewBox=\"0 0 34 14\" aria-hidden=\"true\"><path class=\"line s" +
         colour + "\" d=\"M1 7H33\"/>" + marker(index, 17, 7) + "</svg>";
}

Rows headline(const Row& runs) {
  Rows rows;
  for (const Row& run : runs) {
    Row row = Row::object();
    if (label_of(run) != words(run, "scheme")) row["run"] = label_of(run);
    row["scheme"] = words(run, "scheme");
    const Row final = part(run, "final");
    if (final.is_object()) row.update(final);
    // A language model has both; perplexity is what people compare.
    if (row.contains("perplexity")) row.erase("accuracy");
    const Row same = part(row, "replicas_identical");
    if (same.is_boolean()) row["replicas"] = same.get<bool>() ? "identical" : "differ";
    rows.push_back(std::move(row));
  }
  if (!rows.empty())
    add_speed(rows, rows[basis_of(runs)], are_methods(runs) ? "speed_up" : "speed");
  return rows;
}

std::string lead(const Row& runs) {
  const Rows rows = headline(runs);
  if (rows.size() < 2) return "";
  const bool methods = are_methods(runs);
  const Row& basis = rows[basis_of(runs)];
  const Row* best = winner(rows, basis, methods ? "speed_up" : "ratio");
  if (best == nullptr) return "";
  return tag("p",
             tag("strong", name_of(*best)) + " ends at " + quality_text(*best) + ", against " +
                 quality_text(basis) + " of " + name_of(basis) + ", and " +
                 gain_text(*best, methods) + ".",
             "class=\"lead\"") +
         "\n";
}

std::string headline_table(const Row& runs) {
  const Rows rows = headline(runs);
  const std::vector<Measure> shown = measured(rows);
  std::string head = tag("th", are_methods(runs) ? "method" : "scheme", "scope=\"col\""), body;
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
  return tag("table", tag("thead", tag("tr", head)) + "\n" + tag("tbody", body)) + "\n" +
         note(runs, rows);
}

}  // namespace thinwire::apps
