// options.cc: settings as text.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/core/options.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "thinwire/core/error.h"

namespace thinwire {

Config Config::parse(std::string_view text) {
  Config config;
  const std::size_t colon = text.find(':');
  config.scheme = text.substr(0, colon);
  if (config.scheme.empty()) fail("scheme '", text, "': expected NAME or NAME:KEY=VALUE,KEY=VALUE");
  if (colon == std::string_view::npos) return config;
  for (std::string_view rest = text.substr(colon + 1); !rest.empty();) {
    const std::string_view item = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), item.size() + 1));
    const std::size_t equals = item.find('=');
    if (equals == std::string_view::npos || equals == 0) {
      fail("scheme '", text, "': expected KEY=VALUE, got '", item, "'");
    }
    const std::string key(item.substr(0, equals));
    if (!config.options.emplace(key, item.substr(equals + 1)).second) {
      fail("scheme '", text, "': option '", key, "' is given twice");
    }
  }
  return config;
}

std::string Config::str() const {
  std::string text = scheme;
  char separator = ':';
  for (const auto& [key, value] : options) {
    text += separator + key + "=" + value;
    separator = ',';
  }
  return text;
}

Options::Options(const Config& config, std::span<const Option> known) : scheme_(config.scheme) {
  for (const Option& option : known) values_[option.name] = option.fallback;
  for (const auto& [key, value] : config.options) {
    const auto found = values_.find(key);
    if (found == values_.end()) {
      std::string names;
      for (const Option& option : known) names += (names.empty() ? "" : ", ") + option.name;
      fail("scheme '", scheme_, "' has no option '", key,
           "'; it has: ", names.empty() ? "none" : names);
    }
    found->second = value;
  }
}

const std::string& Options::text(const std::string& name) const {
  const auto found = values_.find(name);
  if (found == values_.end())
    fail("scheme '", scheme_, "': option '", name, "' is read but not listed");
  return found->second;
}

double Options::parse_number(const std::string& name) const {
  const std::string& value = text(name);
  const double number = number_in(value);
  if (std::isnan(number)) {
    fail("scheme '", scheme_, "', option '", name, "': expected a number, got '", value, "'");
  }
  return number;
}

// Schemes compute in f32, so the rounded number must be in the range too.
void Options::require_float(const std::string& name, double number, bool in_range) const {
  if (in_range && (number == 0 || std::fabs(number) >= std::numeric_limits<float>::min())) return;
  fail("scheme '", scheme_, "', option '", name, "': ", text(name), " as a 32-bit float is ",
       static_cast<float>(number), "; give 0 or a number from 1.2e-38 on that stays in the range");
}

double Options::number(const std::string& name, double above, double up_to) const {
  const double number = parse_number(name);
  if (!(number > above && number <= up_to)) {
    fail("scheme '", scheme_, "', option '", name, "': expected a number in (", above, ", ", up_to,
         "], got ", text(name));
  }
  const auto rounded = static_cast<double>(static_cast<float>(number));
  require_float(name, number, rounded > above && rounded <= up_to);
  return number;
}

double Options::number_from(const std::string& name, double from, double below) const {
  const double number = parse_number(name);
  if (!(number >= from && number < below)) {
    fail("scheme '", scheme_, "', option '", name, "': expected a number in [", from, ", ", below,
         "), got ", text(name));
  }
  const auto rounded = static_cast<double>(static_cast<float>(number));
  require_float(name, number, rounded >= from && rounded < below);
  return number;
}

long Options::integer(const std::string& name, long from, long to) const {
  const double number = parse_number(name);
  if (number != std::floor(number) || number < static_cast<double>(from) ||
      number > static_cast<double>(to)) {
    fail("scheme '", scheme_, "', option '", name, "': expected a whole number from ", from, " to ",
         to, ", got ", text(name));
  }
  return static_cast<long>(number);
}

bool Options::flag(const std::string& name) const {
  static constexpr std::string_view choices[] = {"off", "on"};
  return choice(name, choices) == 1;
}

std::size_t Options::choice(const std::string& name,
                            std::span<const std::string_view> choices) const {
  const auto found = std::find(choices.begin(), choices.end(), text(name));
  if (found == choices.end()) {
    std::string all;
    for (std::string_view one : choices) all += (all.empty() ? "" : ", ") + std::string(one);
    fail("scheme '", scheme_, "', option '", name, "': expected one of ", all, "; got '",
         text(name), "'");
  }
  return static_cast<std::size_t>(found - choices.begin());
}

}  // namespace thinwire
