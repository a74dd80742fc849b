// options.h: settings as text ("dgc:density=0.01,values=sign"), read with a type, a range and a
// clear refusal.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace thinwire {

// One setting that a scheme understands; drives parsing, `--help` and the table in docs/schemes.md.
struct Option {
  std::string name;
  std::string fallback;  // default, as text
  std::string help;      // one line, with the range or the choices
};

// Which scheme and with which settings.
struct Config {
  std::string scheme;
  std::map<std::string, std::string> options;

  // Parses "name" or "name:key=value,key=value"; throws an Error on bad syntax.
  static Config parse(std::string_view text);
  // The same form back, keys in order.
  std::string str() const;
};

// Typed access to a Config's options, defaults filled in. Every getter throws an Error that names
// scheme, option, the range and the value given. A number that leaves its range, or vanishes, when it
// is rounded to f32 is refused too.
class Options {
 public:
  // Throws when `config` has an option that is not in `known`, and lists those that are.
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
