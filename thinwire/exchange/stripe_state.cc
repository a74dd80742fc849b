// stripe_state.cc: tensors of cut parameters in one piece, and state as a flat copy.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/exchange/stripe_state.h"

#include <algorithm>

namespace thinwire {

void StripeVisitor::enter(const Stripe& stripe, std::size_t index) {
  stripe_ = &stripe;
  prefix_ = place_ + std::to_string(index) + "/";
}

// Names of the stripe's bucket depend on the cuts: "bucket38/threshold0" -> "bucket3/stripe2/threshold0".
std::string StripeVisitor::rename(const std::string& name) const {
  const std::string own = "bucket" + std::to_string(stripe_->bucket.id) + "/";
  return prefix_ + (name.starts_with(own) ? name.substr(own.size()) : name);
}

// Parts of a parameter wait for the rest of it; their memory is the compressor's, and stays.
void StripeVisitor::tensor(const std::string& name, std::span<float> values, Share share) {
  const std::size_t slash = name.rfind('/');
  const std::string owner = name.substr(0, slash);
  for (std::size_t i = 0; i < stripe_->pieces.size(); ++i) {
    const Parameter& part = stripe_->bucket.parameters[i];
    if (part.name != owner) continue;
    if (stripe_->pieces[i].whole || values.size() != part.count)
      return to_.tensor(name, values, share);
    const Parameter& parameter = bucket_.parameters[stripe_->pieces[i].parameter];
    Whole& whole = cuts_[parameter.name + name.substr(slash)];
    whole.count = parameter.count;
    whole.share = share;
    whole.parts.push_back(values);
    return;
  }
  to_.tensor(rename(name), values, share);
}

void StripeVisitor::number(const std::string& name, double& value, Share share) {
  to_.number(rename(name), value, share);
}

void StripeVisitor::finish() {
  for (auto& [name, whole] : cuts_) {
    std::vector<float> values;
    values.reserve(whole.count);
    for (const std::span<float> part : whole.parts)
      values.insert(values.end(), part.begin(), part.end());
    to_.tensor(name, values, whole.share);
    auto from = values.begin();
    for (const std::span<float> part : whole.parts) {
      std::copy_n(from, part.size(), part.begin());
      from += static_cast<std::ptrdiff_t>(part.size());
    }
  }
  cuts_.clear();
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
