// state.cc: visitors for changes in mid-run.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/torch/state.h"

#include <algorithm>

namespace thinwire::ddp {
namespace {

constexpr std::string_view residual = "/v";

bool is_of_owner(const std::string& name) { return name.find("/owner/") != name.npos; }

}  // namespace

void Transfer::tensor(const std::string& name, std::span<float> values, Share) {
  const auto found = state_.find(name);
  if (found == state_.end() || !found->second.is_tensor ||
      found->second.values.size() != values.size())
    return;
  std::copy(found->second.values.begin(), found->second.values.end(), values.begin());
  taken_.insert(name);
}

void Transfer::number(const std::string& name, double& value, Share) {
  const auto found = state_.find(name);
  if (found != state_.end() && !found->second.is_tensor) value = found->second.number;
}

std::map<std::string, std::vector<float>> Transfer::owed() const {
  std::map<std::string, std::vector<float>> owed;
  for (const auto& [name, entry] : state_) {
    if (!name.ends_with(residual) || entry.share != Share::summed || taken_.contains(name) ||
        is_of_owner(name))
      continue;
    owed[name.substr(0, name.size() - residual.size())] = entry.values;
  }
  return owed;
}

void Rescale::tensor(const std::string& name, std::span<float> values, Share share) {
  const bool scales = share == Share::summed || name.ends_with("/m") || name.ends_with("/norms");
  if (!scales) return;
  for (float& value : values) value *= factor_;
}

void Rescale::number(const std::string& name, double& value, Share) {
  const bool scales = name.find("/threshold") != name.npos || name.find("/tau") != name.npos;
  if (scales) value *= static_cast<double>(factor_);
}

void Multiply::tensor(const std::string& name, std::span<float> values, Share) {
  constexpr std::string_view momentum = "/u";
  if (!name.ends_with(momentum)) return;
  const auto found = factors_.find(name.substr(0, name.size() - momentum.size()));
  if (found == factors_.end()) return;
  for (float& value : values) value *= static_cast<float>(found->second);
}

}  // namespace thinwire::ddp
