// report_parts.h: reading values that may be lacking, and writing markup: for all parts of the page.
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

inline std::string label_of(const Row& run) {
  const std::string label = words(run, "label");
  return label.empty() ? words(run, "scheme") : label;
}

// How much of `whole`, as a length inside an <svg>: "12.345%".
inline std::string share(double part, double whole) {
  return printed("%.3f", 100 * part / whole) + "%";
}

}  // namespace thinwire::apps
