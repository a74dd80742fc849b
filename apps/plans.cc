// plans.cc: turns schemes and the preset into plans; finds flags among words.
// SPDX-License-Identifier: Apache-2.0
#include "apps/plans.h"

#include <algorithm>
#include <cstdlib>

#include "apps/verb.h"
#include "thinwire/compress/registry.h"
#include "thinwire/core/error.h"

namespace thinwire::apps {
namespace {

bool is_flag(const std::string& word, const std::string& flag) {
  return word == flag || word.starts_with(flag + "=");
}

// A fifth of the training, if its length is given in steps.
std::string usual_warmup(const Words& passed) {
  const long steps = std::atol(passed_value(passed, "--steps").c_str());
  return steps > 0 ? std::to_string(std::max(1L, steps / 5)) : "100";
}

std::string taken(Config& options, const std::string& name, const std::string& fallback) {
  const auto found = options.options.find(name);
  if (found == options.options.end()) return fallback;
  std::string value = found->second;
  options.options.erase(found);
  return value;
}

std::string scheme_with(const Config& base, const std::string& scheme, const std::string& key = "",
                        const std::string& value = "") {
  Config config{scheme, base.options};
  if (!key.empty()) config.options[key] = value;
  return config.str();
}

Plan plan(const std::string& label, const std::string& scheme) { return {label, scheme, {}}; }

// Lin et al. 2018 build DGC up from gradient dropping, one idea at a time.
std::vector<Plan> dgc_ablation(Config options, const Words& passed) {
  const std::string warmup = taken(options, "warmup", usual_warmup(passed));
  const std::string clip = taken(options, "clip", "");
  std::vector<Plan> plans = {
      plan("dense", "dense"),
      plan("naive: the rest is forgotten", scheme_with(options, "topk", "feedback", "off")),
      plan("+ accumulation", scheme_with(options, "topk")),
      plan("+ momentum correction", scheme_with(options, "dgc", "mask", "off"))};
  options.options["warmup"] = warmup;
  plans.push_back(plan("+ warm-up", scheme_with(options, "dgc", "mask", "off")));
  if (!clip.empty()) options.options["clip"] = clip;
  plans.push_back(plan("+ factor masking" + std::string(clip.empty() ? "" : ", clipping"),
                       scheme_with(options, "dgc", "mask", "on")));
  plans.push_back(plan("one pool instead of masking", scheme_with(options, "dgc")));
  return plans;
}

// Every scheme as its paper runs it, with a warm-up if it has one. signum changes each weight by
// the learning rate, whatever the gradient, so it needs a learning rate of its own.
std::vector<Plan> all_plans(const Words& passed) {
  std::vector<Plan> plans;
  for (const Scheme* scheme : schemes()) {
    Config config{scheme->name, {}};
    if (std::any_of(scheme->options.begin(), scheme->options.end(),
                    [](const Option& option) { return option.name == "warmup"; }))
      config.options["warmup"] = usual_warmup(passed);
    plans.push_back(plan(config.str(), config.str()));
    if (scheme->name == "signum") {
      plans.back().label += ", lr 0.001";
      plans.back().flags = {"--lr", "0.001"};
    }
  }
  return plans;
}

}  // namespace

std::vector<Plan> scheme_plans(const std::string& text, const Words& passed) {
  if (text == "all") return all_plans(passed);
  std::vector<Plan> plans;
  for (const Config& config : parse_schemes(text)) {
    plans.push_back(plan(config.str(), config.str()));
  }
  return plans;
}

std::vector<Plan> preset_plans(const std::string& text, const Words& passed) {
  Config preset;
  try {
    preset = Config::parse(text);
  } catch (const Error& error) {
    throw BadInput(std::string("--preset: ") + error.what());
  }
  if (preset.scheme != "dgc-ablation") {
    throw BadInput("--preset: expected dgc-ablation, got '" + preset.scheme + "'");
  }
  std::vector<Plan> plans = dgc_ablation(preset, passed);
  for (const Plan& each : plans) (void)parse_scheme(each.scheme);
  return plans;
}

std::string passed_value(const Words& passed, const std::string& flag) {
  for (std::size_t i = 0; i < passed.size(); ++i) {
    if (passed[i] == flag && i + 1 < passed.size()) return passed[i + 1];
    if (is_flag(passed[i], flag) && passed[i] != flag) return passed[i].substr(flag.size() + 1);
  }
  return "";
}

bool has_flag(const Words& passed, const std::string& flag) {
  return std::any_of(passed.begin(), passed.end(),
                     [&](const std::string& word) { return is_flag(word, flag); });
}

Words without(const Words& passed, const std::string& flag) {
  Words rest;
  for (std::size_t i = 0; i < passed.size(); ++i) {
    if (!is_flag(passed[i], flag)) {
      rest.push_back(passed[i]);
    } else if (passed[i] == flag) {
      ++i;  // skips its value
    }
  }
  return rest;
}

}  // namespace thinwire::apps
