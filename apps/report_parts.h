// report_parts.h: reads values that may be missing, and writes markup. Shared by all parts
// of the page.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <optional>
#include <string>

#include "apps/table.h"

namespace thinwire::apps {

using Number = std::optional<double>;

inline Number number(const Row& row, const char* key) {
  if (!row.is_object()) return {};
  const auto found = row.find(key);
  if (found == row.end() || !found->is_number()) return {};
  const auto value = found->get<double>();
  return std::isfinite(value) ? Number(value) : Number();
}

inline std::string words(const Row& row, const char* key) {
  if (!row.is_object()) return "";
  const auto found = row.find(key);
  if (found == row.end() || found->is_null()) return "";
  return found->is_string() ? found->get<std::string>() : found->dump();
}

inline Row part(const Row& row, const char* key) {
  return row.is_object() ? row.value(key, Row()) : Row();
}

inline std::string tag(const std::string& name, const std::string& inside,
                       const std::string& more = "") {
  return "<" + name + (more.empty() ? "" : " " + more) + ">" + inside + "</" + name + ">";
}

// The key of what people compare: a language model's rows also have an accuracy.
inline const char* quality_of(const Row& row) {
  for (const char* key : {"perplexity", "word_error"}) {
    if (row.contains(key)) return key;
  }
  return "accuracy";
}

inline std::string label_of(const Row& run) {
  const std::string label = words(run, "label");
  return label.empty() ? words(run, "scheme") : label;
}

// "350 ms", "12.3 s", "17.4 min", "3.2 h".
inline std::string duration_text(double seconds) {
  if (seconds < 600) return seconds_text(seconds);
  if (seconds < 2 * 3600) return printed("%.1f min", seconds / 60);
  return printed(seconds < 360000 ? "%.1f h" : "%.0f h", seconds / 3600);
}

// "5.64", "37.1", "1520": as many digits as a headline needs.
inline std::string factor_digits(double factor) {
  return printed(factor >= 99.5 ? "%.0f" : factor >= 9.95 ? "%.1f" : "%.2f", factor);
}

// `part` of `whole` as a length inside an <svg>: "12.345%".
inline std::string share(double part, double whole) {
  return printed("%.3f", 100 * part / whole) + "%";
}

}  // namespace thinwire::apps
