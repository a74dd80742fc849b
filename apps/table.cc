// table.cc: formats cells as text and text as columns.
// SPDX-License-Identifier: Apache-2.0
#include "apps/table.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <ostream>

#include "thinwire/core/error.h"

namespace thinwire::apps {
namespace {

// Four significant digits, without an exponent for numbers of ordinary size.
std::string number_text(double value) {
  const double size = std::abs(value);
  if (size != 0 && (size < 1e-3 || size >= 1e9)) return printed("%.2e", value);
  if (size >= 100) return printed("%.1f", value);
  return printed(size >= 10 ? "%.2f" : "%.3f", value);
}

std::string text_of(const Row& value, Show show) {
  if (value.is_boolean()) return value.get<bool>() ? "yes" : "no";
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_number()) return value.dump();
  switch (show) {
    case Show::seconds:
      return seconds_text(value.get<double>());
    case Show::bytes:
      return bytes_text(value.get<double>());
    case Show::number:
      return number_text(value.get<double>());
    case Show::text:
    case Show::count:
      return value.dump();
  }
  return "";
}

std::string cell(const Row& row, const Column& column) {
  const auto found = row.find(column.key);
  return found == row.end() || found->is_null() ? "" : text_of(*found, column.show);
}

std::vector<Column> present(const std::vector<Column>& columns, const Rows& rows) {
  std::vector<Column> kept;
  std::copy_if(columns.begin(), columns.end(), std::back_inserter(kept), [&](const Column& column) {
    return std::any_of(rows.begin(), rows.end(),
                       [&](const Row& row) { return !cell(row, column).empty(); });
  });
  return kept;
}

std::size_t width_of(const Column& column, const Rows& rows) {
  std::size_t width = column.heading.size();
  for (const Row& row : rows) width = std::max(width, cell(row, column).size());
  return width;
}

// Text is left-aligned, numbers right-aligned.
std::string padded(const std::string& text, std::size_t width, bool left) {
  const std::string gap(width - std::min(width, text.size()), ' ');
  return left ? text + gap : gap + text;
}

void print_line(std::ostream& out, std::string line) {
  line.erase(line.find_last_not_of(' ') + 1);
  out << line << '\n';
}

// A bar would end the cell in Markdown.
std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) result += c == '|' ? std::string("\\|") : std::string(1, c);
  return result;
}

}  // namespace

std::string printed(const char* format, double value) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), format, value);
  return text.data();
}

std::string seconds_text(double seconds) {
  const double size = std::abs(seconds);
  if (size >= 1 || size == 0) return printed("%.3g s", seconds);
  if (size >= 1e-3) return printed("%.3g ms", seconds * 1e3);
  if (size >= 1e-6) return printed("%.3g us", seconds * 1e6);
  return printed("%.3g ns", seconds * 1e9);
}

std::string bytes_text(double bytes) {
  if (bytes >= 1e9) return printed("%.2f GB", bytes / 1e9);
  if (bytes >= 1e6) return printed("%.2f MB", bytes / 1e6);
  if (bytes >= 1e3) return printed("%.2f kB", bytes / 1e3);
  return printed("%.0f B", bytes);
}

void print_table(std::ostream& out, const std::vector<Column>& columns, const Rows& rows) {
  const std::vector<Column> shown = present(columns, rows);
  std::vector<std::size_t> widths;
  for (const Column& column : shown) widths.push_back(width_of(column, rows));

  const auto print = [&](const auto& text_at) {
    std::string line;
    for (std::size_t i = 0; i < shown.size(); ++i) {
      line += padded(text_at(shown[i]), widths[i], shown[i].show == Show::text) + "  ";
    }
    print_line(out, std::move(line));
  };
  print([](const Column& column) { return column.heading; });
  for (const Row& row : rows) print([&](const Column& column) { return cell(row, column); });
}

void print_fields(std::ostream& out, const Row& fields) {
  for (const auto& [key, value] : fields.items()) {
    out << padded(key, 20, true) << "  "
        << (value.is_string() ? value.get<std::string>() : value.dump()) << '\n';
  }
  out << '\n';
}

void print_markdown(std::ostream& out, const std::vector<Column>& columns, const Rows& rows) {
  out << '|';
  for (const Column& column : columns) out << ' ' << column.heading << " |";
  out << "\n|";
  for (std::size_t i = 0; i < columns.size(); ++i) out << "---|";
  out << '\n';
  for (const Row& row : rows) {
    out << '|';
    for (const Column& column : columns) out << ' ' << escaped(cell(row, column)) << " |";
    out << '\n';
  }
}

void write_json(const std::string& path, const Row& about, const Rows& rows) {
  Row document = about;
  document["rows"] = rows;
  std::ofstream file(path);
  // A path in a command line need not be UTF-8.
  file << document.dump(1, ' ', false, Row::error_handler_t::replace) << '\n';
  file.close();
  if (!file) fail("cannot write '", path, "'");
}

}  // namespace thinwire::apps
