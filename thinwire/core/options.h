// options.h: settings as text ("dgc:density=0.01,values=sign"), parsed with a type and a range.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace thinwire {

// One option of a scheme. Parsing, `--help` and the table of schemes in the docs follow from it.
struct Option {
  std::string name;
  std::string fallback;  // default, as text
  std::string help;      // one line, with the range or the choices
};

// A scheme and its settings.
struct Config {
  std::string scheme;
  std::map<std::string, std::string> options;

  // Parses "name" or "name:key=value,key=value"; throws an Error on bad syntax.
  static Config parse(std::string_view text);
  // The same form back, keys in order.
  std::string str() const;
};

// Typed access to a Config's options; missing options have their defaults. Every getter throws an
// Error that names the scheme, the option, the range and the given value. Schemes compute in f32,
// so a number is also refused when rounding it to f32 takes it out of its range or turns it into 0.
class Options {
 public:
  // Throws when `config` has an option that is not in `known`. The error lists the known options.
  Options(const Config& config, std::span<const Option> known);

  double number(const std::string& name, double above, double up_to) const;  // above < x <= up_to
  double number_from(const std::string& name, double from,
                     double below) const;  // from <= x < below
  long integer(const std::string& name, long from, long to) const;
  bool flag(const std::string& name) const;  // on | off
  // Index of the value in `choices`.
  std::size_t choice(const std::string& name, std::span<const std::string_view> choices) const;

 private:
  const std::string& text(const std::string& name) const;
  double parse_number(const std::string& name) const;
  void require_float(const std::string& name, double number, bool in_range) const;
  std::string scheme_;
  std::map<std::string, std::string> values_;
};

}  // namespace thinwire
