// verb.cc: flags, schemes and reports, common to all verbs.
// SPDX-License-Identifier: Apache-2.0
#include "apps/verb.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iostream>
#include <thread>

#include "apps/flags.h"
#include "apps/nearest.h"
#include "thinwire/compress/registry.h"
#include "thinwire/core/error.h"
#include "thinwire/kernels/target.h"

namespace thinwire::apps {
namespace {

std::size_t parse_count(const std::string& flag, const std::string& text) {
  std::size_t used = 0;
  double value = 0;
  try {
    value = std::stod(text, &used);
  } catch (const std::exception&) {
    used = 0;
  }
  if (used != text.size() || text.empty() || !(value >= 1) || value > 4294967295.0 ||
      value != std::floor(value)) {
    throw BadInput(flag + ": expected whole numbers from 1 to 4294967295, as in 1000000 or 1e6; " +
                   "got '" + text + "'");
  }
  return static_cast<std::size_t>(value);
}

// A suggestion for an unknown scheme or option name; empty otherwise.
std::string meant(const Config& config) {
  std::vector<std::string> names;
  for (const Scheme* scheme : schemes()) {
    if (scheme->name != config.scheme) {
      names.push_back(scheme->name);
      continue;
    }
    names.clear();
    for (const Option& option : scheme->options) names.push_back(option.name);
    for (const auto& [key, value] : config.options) {
      if (std::find(names.begin(), names.end(), key) == names.end())
        return did_you_mean(key, names);
    }
    return "";
  }
  return did_you_mean(config.scheme, names);
}

std::string processor() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    const std::size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown processor";
}

}  // namespace

CLI::App* add_verb(CLI::App& parent, const std::string& name, const std::string& help,
                   const std::string& example, std::string& json) {
  CLI::App* verb = parent.add_subcommand(name, help);
  verb->add_option("--json", json, "File for the rows, as JSON")
      ->type_name("FILE")
      ->check(check_output_path);
  if (!example.empty()) verb->footer("Example:\n  " + example + "\n");
  return verb;
}

CLI::Option* add_counts(CLI::App& verb, const std::string& flag, std::vector<std::size_t>& counts,
                        const std::string& help) {
  std::string defaults;
  for (const std::size_t count : counts) {
    defaults += (defaults.empty() ? "" : ",") + std::to_string(count);
  }
  const auto read = [&counts, flag](const std::vector<std::string>& texts) {
    counts.clear();
    for (const std::string& text : texts) counts.push_back(parse_count(flag, text));
  };
  return verb.add_option_function<std::vector<std::string>>(flag, read, help)
      ->type_name("N[,N...]")
      ->delimiter(',')
      ->default_str(defaults);
}

Config parse_scheme(const std::string& text) {
  Config config;
  try {
    config = Config::parse(text);
    (void)make_compressor(config, Bucket::single(0, "check", 1), Site{});
    return config;
  } catch (const Error& error) {
    throw BadInput(error.what() + meant(config));
  }
}

std::vector<Config> parse_schemes(const std::string& text) {
  std::vector<std::string> parts;
  std::string part;
  for (std::istringstream in(text); std::getline(in, part, ',');) {
    const bool continues =
        part.find('=') != std::string::npos && part.find(':') == std::string::npos;
    if (continues && !parts.empty()) {
      parts.back() += "," + part;
    } else {
      parts.push_back(part);
    }
  }
  if (parts.empty()) throw BadInput("--schemes: expected one scheme or more, got none");
  std::vector<Config> configs;
  for (const std::string& scheme : parts) {
    if (scheme == "all") {
      for (const Scheme* each : schemes()) configs.push_back(parse_scheme(each->name));
    } else {
      configs.push_back(parse_scheme(scheme));
    }
  }
  return configs;
}

Row about_machine() {
  return {{"machine", processor()},
          {"cores", std::thread::hardware_concurrency()},
          {"vectors", kernel_targets().front()},
          {"version", THINWIRE_VERSION}};
}

void print_machine(const Row& about) {
  std::cout << about.at("machine").get<std::string>() << ", " << about.at("cores")
            << " cores, vectors: " << about.at("vectors").get<std::string>() << "\n\n";
}

void report(const std::vector<Column>& columns, const Rows& rows, const std::string& json) {
  const Row about = about_machine();
  print_machine(about);
  print_table(std::cout, columns, rows);
  if (!json.empty()) write_json(json, about, rows);
}

void progress(const std::string& text) {
  if (isatty(STDERR_FILENO) == 0) return;
  std::cerr << "\r\033[K" << text << std::flush;
}

}  // namespace thinwire::apps
