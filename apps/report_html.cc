// report_html.cc: assembles tables, charts and bars of a comparison into a page.
// SPDX-License-Identifier: Apache-2.0
#include "apps/report_html.h"

#include <algorithm>

#include "apps/chart_svg.h"
#include "apps/report_charts.h"
#include "apps/report_parts.h"
#include "apps/report_script.h"
#include "apps/report_steps.h"
#include "apps/report_style.h"
#include "apps/report_table.h"
#include "apps/report_target.h"
#include "apps/run_clock.h"

namespace thinwire::apps {
namespace {

std::string machine_text(const Row& comparison) {
  const std::string cores = words(comparison, "cores");
  return words(comparison, "machine") + (cores.empty() ? "" : ", " + cores + " cores");
}

std::string link_text(const Row& comparison, RunClock clock) {
  const std::string link = words(comparison, "link");
  if (clock == RunClock::none) return "none";
  if (link.empty()) return "the machine's own";
  return link + (clock == RunClock::estimated ? ", estimated" : ", emulated");
}

bool in_common(const Row& runs, const std::string& key, const Row& value) {
  return std::all_of(runs.begin(), runs.end(), [&](const Row& run) {
    return part(part(run, "settings"), key.c_str()) == value;
  });
}

// A setting of train, if it is the same in all runs.
std::string common_setting(const Row& runs, const std::string& key) {
  if (runs.empty()) return "";
  const Row settings = part(runs[0], "settings");
  return in_common(runs, key, part(settings, key.c_str())) ? words(settings, key.c_str()) : "";
}

// A count in "final", if it is the same in all runs.
std::string common_count(const Row& runs, const char* key) {
  std::string text;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const Number count = number(part(runs[i], "final"), key);
    const std::string own = count ? printed("%.9g", *count) : "";
    if (i > 0 && own != text) return "";
    text = own;
  }
  return text;
}

std::string fact(const std::string& name, const std::string& value, bool code = false) {
  if (value.empty()) return "";
  const std::string text = escaped_markup(value);
  return tag("div", tag("dt", name) + tag("dd", code ? tag("code", text) : text),
             code ? "class=\"wide\"" : "") +
         "\n";
}

// What was trained, where and how: readers need this first to judge a number.
std::string facts(const Row& comparison, const Row& runs) {
  const std::string batch = common_setting(runs, "batch"),
                    workers = common_setting(runs, "workers");
  const RunClock clock = clock_of(runs);
  const bool virtually = clock != RunClock::measured && !workers.empty();
  return tag("dl",
             fact("model", common_setting(runs, "model")) +
                 fact("data", common_setting(runs, "data")) +
                 fact("workers", workers + (virtually ? ", virtual" : "")) +
                 fact("batch", batch.empty() ? "" : batch + " per worker") +
                 fact("steps", common_count(runs, "steps")) +
                 fact("seeds", common_count(runs, "seeds")) +
                 fact("link", link_text(comparison, clock)) +
                 fact("machine", machine_text(comparison)) +
                 fact("date", words(comparison, "date")) +
                 fact("version", words(comparison, "version")) +
                 fact("command", words(comparison, "command"), true),
             "class=\"facts\"") +
         "\n";
}

// The other settings that all runs share, as train wrote them: "partition iid, optimizer sgd, ..."
std::string other_settings(const Row& runs) {
  const Row settings = runs.empty() ? Row() : part(runs[0], "settings");
  if (!settings.is_object()) return "";
  std::string text;
  for (const auto& [key, value] : settings.items()) {
    const bool told = key == "model" || key == "data" || key == "workers" || key == "batch";
    if (told || key == "scheme" || !in_common(runs, key, value)) continue;
    text += (text.empty() ? "" : ", ") + key + " " + words(settings, key.c_str());
  }
  if (text.empty()) return "";
  return tag("h2", "Other settings") + "\n" + tag("p", escaped_markup(text)) + "\n";
}

std::string warning(const std::string& what, const std::string& meaning) {
  return tag("p", tag("strong", escaped_markup(what)) + ". " + meaning, "class=\"warn\"") + "\n";
}

std::string notice(const Row& comparison, RunClock clock) {
  const std::string link = words(comparison, "link");
  if (clock == RunClock::none) {
    return warning(
        "Virtual workers",
        "They take turns in one process, and there is no time to compare: bytes decide.");
  }
  if (clock == RunClock::estimated) {
    return warning("Estimated times: " + link,
                   "Virtual workers take turns in one process, and nothing waits. A step is "
                   "computing and encoding of its slowest worker, then all messages over the link, "
                   "then decoding and the update; nothing overlaps. Bytes are counted as sent.");
  }
  if (link.empty()) return "";
  return warning("Emulated link: " + link,
                 "Workers share one machine, and our code delays their messages. Bytes are counted "
                 "as sent.");
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
         "\n" + facts(comparison, runs) + notice(comparison, clock_of(runs)) + lead(runs) +
         target_section(runs) + tag("h2", "At the end") + "\n" + headline_table(runs) +
         chart_sections(runs) + cost_section(runs) + timeline_section(runs) + stage_section(runs) +
         other_settings(runs) + "</main>\n" + tag("script", report_script) + "\n</body>\n</html>\n";
}

}  // namespace thinwire::apps
