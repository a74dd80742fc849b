// table.h: rows of a result, as an aligned table for people and as JSON for programs.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <iosfwd>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace thinwire::apps {

// One row of a result, with its keys in the order in which they were set. Times are in seconds and
// sizes in bytes; only print_table() converts them to readable units.
using Row = nlohmann::ordered_json;
using Rows = std::vector<Row>;

enum class Show {
  text,     // as it is
  count,    // 12345678
  number,   // about four digits, 1.234
  seconds,  // 1.23 ms
  bytes,    // 1.23 MB
};

struct Column {
  std::string key;
  std::string heading;
  Show show = Show::text;
};

// A column that no row has is omitted. A missing key shows as an empty cell.
void print_table(std::ostream& out, const std::vector<Column>& columns, const Rows& rows);

// One line per field: its name and its value.
void print_fields(std::ostream& out, const Row& fields);

// The same as a Markdown table, with every cell as plain text.
void print_markdown(std::ostream& out, const std::vector<Column>& columns, const Rows& rows);

// Writes {"rows": [...]} and the keys of `about` to a file. Throws an Error if it cannot.
void write_json(const std::string& path, const Row& about, const Rows& rows);

// A number in one of printf's formats.
std::string printed(const char* format, double value);

// The format of values in tables: "1.23 ms", "45.6 kB".
std::string seconds_text(double seconds);
std::string bytes_text(double bytes);

}  // namespace thinwire::apps
