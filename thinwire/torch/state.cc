// state.cc: visitors for changes in mid-run.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/torch/state.h"

#include <algorithm>

#include "thinwire/exchange/stripe_state.h"

namespace thinwire::ddp {
namespace {

constexpr std::string_view residual = "/v";

// "PARAMETER" of "PARAMETER/v"; empty if that is not a residual.
std::string residual_of(const std::string& name, Share share) {
  if (share != Share::summed || !name.ends_with(residual)) return "";
  return name.substr(0, name.size() - residual.size());
}

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

Owed Transfer::owed(const std::vector<Bucket>& buckets, int workers) const {
  Owed owed;
  for (const auto& [name, entry] : state_) {
    if (taken_.contains(name)) continue;
    if (const auto owned = owned_residual(name, entry)) {
      add_part(owed[owned->parameter], owned->from, entry.values, static_cast<float>(workers));
    } else if (const std::string parameter = residual_of(name, entry.share); !parameter.empty()) {
      add_part(owed[parameter], 0, entry.values, 1);
    }
  }
  for (const Bucket& bucket : buckets) {
    for (const Parameter& parameter : bucket.parameters) {
      const auto found = owed.find(parameter.name);
      // An owner of a part of it has left the rest out.
      if (found != owed.end() && found->second.size() < parameter.count)
        found->second.resize(parameter.count);
    }
  }
  return owed;
}

void Deposit::tensor(const std::string& name, std::span<float> values, Share share) {
  const auto found = owed_.find(residual_of(name, share));
  if (found == owed_.end() || found->second.size() != values.size()) return;
  for (std::size_t i = 0; i < values.size(); ++i) values[i] += found->second[i];
  owed_.erase(found);
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
