// methods.cc: ways to average a model over the workers, as flags of `thinwire train`. All of them
// run through the same training code, so that their times can be compared.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <charconv>
#include <sstream>

#include "apps/plans.h"
#include "apps/verb.h"
#include "thinwire/core/error.h"
#include "thinwire/delay/options.h"

namespace thinwire::apps {
namespace {

struct Method {
  const char* name;
  Words keys;  // its own options; scheme= and that scheme's options come on top
};

const std::array<Method, 4> methods = {{
    {"sync", {}},
    {"fedavg", {"local"}},
    {"dga", {"delay", "local", "correction", "share", "clip", "rate", "book"}},
    {"delayed", {"delay", "local"}},
}};

constexpr const char* usual_local = "5";  // default of fedavg; Zhu et al. 2021 compare with it

[[noreturn]] void refuse(const std::string& text, const std::string& why) {
  throw BadInput("--methods: '" + text + "': " + why);
}

std::string listed(const Words& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

const Method& find_method(const std::string& text, const std::string& name) {
  Words known;
  for (const Method& method : methods) {
    if (method.name == name) return method;
    known.emplace_back(method.name);
  }
  refuse(text, "there is no method '" + name + "'; known are: " + listed(known));
}

// Options, grouped by what they apply to.
struct Sorted {
  std::map<std::string, std::string> own;
  Config scheme;
};

Sorted sorted(const std::string& text, const Config& config, const Method& method) {
  Sorted result;
  for (const auto& [key, value] : config.options) {
    if (key == "scheme") {
      result.scheme.scheme = value;
    } else if (std::find(method.keys.begin(), method.keys.end(), key) != method.keys.end()) {
      result.own[key] = value;
    } else {
      result.scheme.options[key] = value;
    }
  }
  if (!result.scheme.scheme.empty() || result.scheme.options.empty()) return result;
  Words known = method.keys;
  known.emplace_back("scheme");
  refuse(text, "method " + config.scheme + " has no '" + result.scheme.options.begin()->first +
                   "'; it has: " + listed(known) +
                   ", and with scheme=NAME the options of that scheme");
}

// The value of --correction; empty if no option sets it.
std::string correction_of(const std::map<std::string, std::string>& own) {
  Config correction{own.contains("clip") ? "ledger" : "soft", {}};  // soft has no clip
  bool given = false;
  for (const char* key : {"correction", "share", "clip", "rate", "book"}) {
    const auto found = own.find(key);
    if (found == own.end()) continue;
    given = true;
    if (found->first == "correction") {
      correction.scheme = found->second;
    } else {
      correction.options[key] = found->second;
    }
  }
  return given ? correction.str() : "";
}

std::uint64_t local_steps(const std::string& text, const std::string& value) {
  std::uint64_t steps = 0;
  const char* const end = value.data() + value.size();
  const auto [rest, error] = std::from_chars(value.data(), end, steps);
  if (error == std::errc{} && rest == end && steps >= 1 && steps <= 100000) return steps;
  refuse(text, "local: expected a number of steps from 1 to 100000, got '" + value + "'");
}

// Makes the same checks as train, but before hours of other runs.
void check(const std::string& text, const Words& flags) {
  DelayOptions options;
  try {
    const std::string delay = passed_value(flags, "--delay");
    if (!delay.empty()) options.parse_delay(delay);
    const std::string correction = passed_value(flags, "--correction");
    if (!correction.empty()) options.parse_correction(correction);
    options.check();
  } catch (const Error& error) {
    refuse(text, error.what());
  }
}

Words flags_of(const std::string& text, const std::string& name,
               std::map<std::string, std::string> own) {
  if (name == "sync") return {"--delay", "0"};
  Words flags;
  if (name == "fedavg") {
    own.emplace("local", usual_local);
  } else {
    if (!own.contains("delay")) {
      refuse(text, "method " + name + " needs delay=D, as in " + name + ":delay=20");
    }
    flags = {"--delay", own["delay"]};
  }
  if (own.contains("local")) {
    flags.insert(flags.end(), {"--local-steps", std::to_string(local_steps(text, own["local"]))});
  }
  const std::string correction = name == "delayed" ? "none" : correction_of(own);
  if (!correction.empty()) flags.insert(flags.end(), {"--correction", correction});
  check(text, flags);
  return flags;
}

Plan plan_of(const std::string& text, const std::string& scheme) {
  try {
    const Config config = Config::parse(text);
    const Sorted options = sorted(text, config, find_method(text, config.scheme));
    const bool own_scheme = !options.scheme.scheme.empty();
    return {.label = text,
            .scheme = parse_scheme(own_scheme ? options.scheme.str() : scheme).str(),
            .flags = flags_of(text, config.scheme, options.own)};
  } catch (const Error& error) {
    throw BadInput(std::string("--methods: ") + error.what());
  }
}

// A part that contains '=' before any ':' is a further option of the method before it. Values may
// contain colons, as in delay=auto:20.
Words parts_of(const std::string& text) {
  Words parts;
  std::string part;
  for (std::istringstream in(text); std::getline(in, part, ',');) {
    const std::size_t sign = part.find_first_of("=:");
    const bool continues = sign != std::string::npos && part[sign] == '=';
    if (continues && !parts.empty()) {
      parts.back() += "," + part;
    } else {
      parts.push_back(part);
    }
  }
  return parts;
}

bool is_usual_fedavg(const Plan& plan) {
  return plan.label.starts_with("fedavg") &&
         passed_value(plan.flags, "--local-steps") == usual_local;
}

}  // namespace

std::vector<Plan> method_plans(const std::string& text, const Words& passed) {
  for (const char* flag : {"--delay", "--local-steps", "--correction"}) {
    if (has_flag(passed, flag))
      throw BadInput(std::string(flag) + " and --methods clash: set it inside the method, as in " +
                     "dga:delay=20,local=5,correction=pull");
  }
  const std::string scheme = passed_value(passed, "--scheme");
  std::vector<Plan> plans;
  for (const std::string& part : parts_of(text)) {
    plans.push_back(plan_of(part, scheme.empty() ? "dense" : scheme));
  }
  if (plans.empty()) throw BadInput("--methods: expected one method or more, got none");
  const auto basis = std::find_if(plans.begin(), plans.end(), is_usual_fedavg);
  (basis == plans.end() ? plans.front() : *basis).basis = true;
  return plans;
}

}  // namespace thinwire::apps
