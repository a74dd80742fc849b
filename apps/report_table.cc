// report_table.cc: the headline table of a comparison: one row per run.
// SPDX-License-Identifier: Apache-2.0
#include "apps/report_table.h"

#include <algorithm>
#include <array>

#include "apps/chart_svg.h"
#include "apps/report_parts.h"
#include "apps/target.h"

namespace thinwire::apps {
namespace {

std::string times_text(double factor) { return factor_digits(factor) + "\u00d7"; }

std::string percent_text(double share) { return printed("%.2f", 100 * share) + " %"; }

struct Measure {
  const char* key;
  const char* heading;
  std::string (*text)(double);
};

std::string loss_text(double loss) { return printed("%.4g", loss); }

constexpr std::array<Measure, 11> measures = {{
    {"accuracy", "accuracy", percent_text},
    {"word_error", "word error rate", percent_text},
    {"perplexity", "perplexity", loss_text},
    {"loss", "loss", loss_text},
    {"bytes_per_step", "bytes per step", bytes_text},
    {"ratio", "ratio", times_text},
    {"last_ratio", "ratio at end", times_text},
    {"seconds_per_step", "time per step", seconds_text},
    {"estimated_seconds_per_step", "estimated time per step", seconds_text},
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

// The range of the quality over the seeds; empty with one seed.
std::string seed_range(const Row& row) {
  const Number low = number(row, "lowest"), high = number(row, "highest");
  if (!low || !high) return "";
  const std::string key = quality_of(row);
  const std::string from = quality_text(key, *low), to = quality_text(key, *high);
  return tag("span",
             (from == to ? "the same" : from + " \u2013 " + to) + " over " +
                 escaped_markup(words(row, "seeds")) + " seeds",
             "class=\"quiet\"");
}

std::string name_cell(const Row& row, std::size_t index) {
  const std::string scheme = escaped_markup(words(row, "scheme"));
  const std::string run = words(row, "run");
  if (run.empty()) return tag("td", key_of(index) + scheme + seed_range(row));
  return tag("td", key_of(index) + escaped_markup(run) +
                       tag("span", tag("code", scheme), "class=\"quiet\"") + seed_range(row));
}

std::string name_of(const Row& row) {
  const std::string run = words(row, "run");
  return escaped_markup(run.empty() ? words(row, "scheme") : run);
}

std::string seeds_text(const Rows& rows) {
  const std::string seeds = rows.empty() ? "" : words(rows[0], "seeds");
  return seeds.empty() ? "" : " Numbers are means over " + seeds + " seeds.";
}

std::string note(const Row& runs, const Rows& rows) {
  const std::string steps = clock_of(runs) == RunClock::estimated ? "estimated steps" : "steps";
  const std::string speed =
      clock_of(runs) == RunClock::none
          ? "Virtual workers without a --link have no time and no speed."
      : are_methods(runs)
          ? "Speed-up is in " + steps + " per second, against " + name_of(rows[basis_of(runs)]) +
                ". The first steps of a delayed method wait for nothing; the wait for messages in "
                "flight after its last step counts. Compare runs much longer than the delay."
          : "Speed is in " + steps + " per second, against the first row.";
  return tag("p",
             "Bytes are what one worker's encoders wrote; the ratio is to the same gradients as "
             "f32. " +
                 speed + seeds_text(rows),
             "class=\"quiet\"") +
         "\n";
}

void add_speed(Rows& rows, const Row& basis, const char* key) {
  const Number base = step_seconds(basis);
  for (Row& row : rows) {
    const Number own = step_seconds(row);
    if (base && own && *own > 0) row[key] = *base / *own;
  }
}

void add_reach(Row& row, const Row& run, const std::optional<Target>& target) {
  if (!target) return;
  row["target"] = target->value;
  if (const std::optional<Reach> reach = reach_of(run, *target)) {
    row["target_steps"] = reach->steps.mean;
    if (reach->seconds) row["target_seconds"] = reach->seconds->mean;
    row["target_bytes"] = reach->bytes.mean;
  }
}

// The index of the marked run, or the number of runs if none is.
std::size_t marked(const Row& runs) {
  return static_cast<std::size_t>(
      std::find_if(runs.begin(), runs.end(),
                   [](const Row& run) { return part(run, "basis") == Row(true); }) -
      runs.begin());
}

}  // namespace

bool are_methods(const Row& runs) { return marked(runs) < runs.size(); }

std::size_t basis_of(const Row& runs) { return are_methods(runs) ? marked(runs) : 0; }

Rows headline(const Row& runs) {
  const std::optional<Target> target = target_of(runs);
  Rows rows;
  for (const Row& run : runs) {
    Row row = Row::object();
    if (label_of(run) != words(run, "scheme")) row["run"] = label_of(run);
    row["scheme"] = words(run, "scheme");
    const Row final = part(run, "final");
    if (final.is_object()) row.update(final);
    // A language model has both; perplexity is what people compare.
    if (row.contains("perplexity")) row.erase("accuracy");
    const Number low = number(row, "lowest"), high = number(row, "highest");
    if (low && high) row["range"] = printed("%.4f", *low) + " - " + printed("%.4f", *high);
    const Row same = part(row, "replicas_identical");
    if (same.is_boolean()) row["replicas"] = same.get<bool>() ? "identical" : "differ";
    add_reach(row, run, target);
    rows.push_back(std::move(row));
  }
  if (!rows.empty())
    add_speed(rows, rows[basis_of(runs)], are_methods(runs) ? "speed_up" : "speed");
  return rows;
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
