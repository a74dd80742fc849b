// table.h: rows of a result, as an aligned table for people and as JSON for programs.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <iosfwd>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace thinwire::apps {

// One line of a result, keys in the order they were set. Times are in seconds, sizes in bytes: the
// units that people like are given to them by print_table() alone.
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

// A column that no row has is left out; a key that a row lacks is shown as nothing.
void print_table(std::ostream& out, const std::vector<Column>& columns, const Rows& rows);

// One line per field: its name and its value.
void print_fields(std::ostream& out, const Row& fields);

// The same as a table of Markdown, every cell as plain text.
void print_markdown(std::ostream& out, const std::vector<Column>& columns, const Rows& rows);

// {"rows": [...]} and the keys of `about`, as a file; throws an Error when it cannot be written.
void write_json(const std::string& path, const Row& about, const Rows& rows);

// A number in one of printf's formats.
std::string printed(const char* format, double value);

// How values look in tables: "1.23 ms", "45.6 kB".
std::string seconds_text(double seconds);
std::string bytes_text(double bytes);

}  // namespace thinwire::apps
