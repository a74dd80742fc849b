// plans.h: what `thinwire compare` trains, from schemes, a preset, or methods.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace thinwire::apps {

// Flags of `thinwire train`, as words.
using Words = std::vector<std::string>;

struct Plan {
  std::string label;
  std::string scheme;
  Words flags;         // further flags, each with a value, that define the method
  bool basis = false;  // the baseline for the speed-up of the others

  // "scheme topk", "method dga:delay=20": for messages.
  std::string str() const { return flags.empty() ? "scheme " + scheme : "method " + label; }
};

// "dense,dgc:density=0.01,values=sign": one plan per scheme. "all": every scheme of the registry,
// with a warm-up derived from --steps in `passed`. All of these functions throw BadInput.
std::vector<Plan> scheme_plans(const std::string& text, const Words& passed);

// "dgc-ablation:density=0.01". Without an explicit warm-up, it is derived from --steps in `passed`.
std::vector<Plan> preset_plans(const std::string& text, const Words& passed);

// "sync,fedavg:local=5,dga:delay=20,scheme=topk": one plan per method. A method without a scheme
// uses --scheme in `passed`. The baseline is the first fedavg with 5 local steps, otherwise the
// first method.
std::vector<Plan> method_plans(const std::string& text, const Words& passed);

// The value of a flag ("--flag value" or "--flag=value"), and whether the flag is present.
std::string passed_value(const Words& passed, const std::string& flag);
bool has_flag(const Words& passed, const std::string& flag);
// The words without the flag and its value.
Words without(const Words& passed, const std::string& flag);

}  // namespace thinwire::apps
