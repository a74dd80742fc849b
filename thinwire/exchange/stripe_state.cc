// stripe_state.cc: joins the tensors of cut parameters, and copies state.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/exchange/stripe_state.h"

#include <algorithm>
#include <charconv>
#include <utility>

namespace thinwire {

void StripeVisitor::enter(const Stripe& stripe, std::size_t index) {
  stripe_ = &stripe;
  prefix_ = place_ + std::to_string(index) + "/";
}

// Names in a stripe depend on the cuts: "bucket38/threshold0" -> "bucket3/stripe2/threshold0".
std::string StripeVisitor::rename(const std::string& name) const {
  const std::string own = "bucket" + std::to_string(stripe_->bucket.id) + "/";
  return prefix_ + (name.starts_with(own) ? name.substr(own.size()) : name);
}

void StripeVisitor::tensor(const std::string& name, std::span<float> values, Share share) {
  const std::size_t slash = name.rfind('/');
  const std::string owner = name.substr(0, slash);
  for (std::size_t i = 0; i < stripe_->pieces.size(); ++i) {
    const Parameter& part = stripe_->bucket.parameters[i];
    if (part.name != owner) continue;
    if (stripe_->pieces[i].whole || values.size() != part.count) {
      if (!joined_) to_.tensor(name, values, share);
      return;
    }
    const Parameter& parameter = bucket_.parameters[stripe_->pieces[i].parameter];
    Whole& whole = cuts_[parameter.name + name.substr(slash)];
    whole.share = share;
    if (!joined_) {
      whole.values.insert(whole.values.end(), values.begin(), values.end());
    } else {
      std::copy_n(whole.values.begin() + static_cast<std::ptrdiff_t>(whole.given), values.size(),
                  values.begin());
      whole.given += values.size();
    }
    return;
  }
  if (!joined_) to_.tensor(rename(name), values, share);
}

void StripeVisitor::number(const std::string& name, double& value, Share share) {
  if (!joined_) to_.number(rename(name), value, share);
}

bool StripeVisitor::join() {
  for (auto& [name, whole] : cuts_) to_.tensor(name, whole.values, whole.share);
  joined_ = true;
  return !cuts_.empty();
}

std::optional<OwnedResidual> owned_residual(const std::string& name, const StateEntry& entry) {
  constexpr std::string_view end = "/owner/v";
  if (!entry.is_tensor || entry.share != Share::summed || !name.ends_with(end)) return {};
  std::string parameter = name.substr(0, name.size() - end.size());
  const std::size_t cut = parameter.rfind('[');
  if (cut == parameter.npos || !parameter.ends_with(']')) return OwnedResidual{parameter, 0};
  const char* const last = parameter.data() + parameter.size() - 1;
  std::size_t from = 0, to = 0;
  const auto first = std::from_chars(parameter.data() + cut + 1, last, from);
  if (first.ec != std::errc{} || first.ptr == last || *first.ptr != ':' ||
      std::from_chars(first.ptr + 1, last, to).ptr != last || to - from != entry.values.size())
    return OwnedResidual{parameter, 0};  // the brackets belong to the parameter's own name
  return OwnedResidual{parameter.substr(0, cut), from};
}

void add_part(std::vector<float>& values, std::size_t from, std::span<const float> part,
              float factor) {
  values.resize(std::max(values.size(), from + part.size()));
  for (std::size_t i = 0; i < part.size(); ++i) values[from + i] += factor * part[i];
}

void fold_owned(State& state, const std::vector<Bucket>& buckets, int workers) {
  State folded;
  for (const auto& [name, entry] : state) {
    const auto owned = owned_residual(name, entry);
    const std::string place = owned ? owned->parameter + "/v" : name;
    StateEntry& to = folded[place];
    if (!owned) {
      std::vector<float> before = std::exchange(to.values, {});  // from owners visited earlier
      to = entry;
      add_part(to.values, 0, before, 1);
      continue;
    }
    to.share = Share::summed;
    to.is_tensor = true;
    add_part(to.values, owned->from, entry.values, static_cast<float>(workers));
  }
  for (const Bucket& bucket : buckets) {
    for (const Parameter& parameter : bucket.parameters) {
      const auto found = folded.find(parameter.name + "/v");
      if (found != folded.end()) found->second.values.resize(parameter.count);
    }
  }
  state = std::move(folded);
}

namespace {

class Taking final : public StateVisitor {
 public:
  Taking(std::vector<float>& tensors, std::vector<double>& numbers)
      : tensors_(tensors), numbers_(numbers) {}
  void tensor(const std::string&, std::span<float> values, Share) override {
    tensors_.insert(tensors_.end(), values.begin(), values.end());
  }
  void number(const std::string&, double& value, Share) override { numbers_.push_back(value); }

 private:
  std::vector<float>& tensors_;
  std::vector<double>& numbers_;
};

class Putting final : public StateVisitor {
 public:
  Putting(std::span<const float> tensors, std::span<const double> numbers)
      : tensors_(tensors), numbers_(numbers) {}
  void tensor(const std::string&, std::span<float> values, Share) override {
    std::copy_n(tensors_.begin(), values.size(), values.begin());
    tensors_ = tensors_.subspan(values.size());
  }
  void number(const std::string&, double& value, Share) override {
    value = numbers_.front();
    numbers_ = numbers_.subspan(1);
  }

 private:
  std::span<const float> tensors_;
  std::span<const double> numbers_;
};

}  // namespace

void Snapshot::take(const Visit& visit) {
  tensors_.clear();
  numbers_.clear();
  Taking taking(tensors_, numbers_);
  visit(taking);
}

void Snapshot::put_back(const Visit& visit) {
  Putting putting(tensors_, numbers_);
  visit(putting);
}

}  // namespace thinwire
