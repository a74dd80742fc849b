// state.h: moves a scheme's memory when the buckets or the scheme change. Each class visits the
// state that visit_state() describes by parameter name.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "thinwire/core/state.h"

namespace thinwire::ddp {

// What is owed to the training, by parameter.
using Owed = std::map<std::string, std::vector<float>>;

// Loads what `state` has for the entries visited, and leaves the others alone. Another scheme or
// cut has other entries; residuals that found no place are not lost but owed().
class Transfer final : public StateVisitor {
 public:
  explicit Transfer(const State& state) : state_(state) {}

  void tensor(const std::string& name, std::span<float> values, Share share) override;
  void number(const std::string& name, double& value, Share share) override;

  // Residuals that nobody took. Those of owners count once per worker, because they belong to
  // averages.
  Owed owed(const std::vector<Bucket>& buckets, int workers) const;

 private:
  const State& state_;
  std::set<std::string> taken_;
};

// Adds what is owed to the residuals visited, and removes it from `owed`. The scheme has no place
// for what remains; add it to the next gradient.
class Deposit final : public StateVisitor {
 public:
  explicit Deposit(Owed& owed) : owed_(owed) {}
  void tensor(const std::string& name, std::span<float> values, Share share) override;
  void number(const std::string&, double&, Share) override {}

 private:
  Owed& owed_;
};

// Multiplies everything that scales with gradients, when AMP's loss scale has changed.
class Rescale final : public StateVisitor {
 public:
  explicit Rescale(float factor) : factor_(factor) {}
  void tensor(const std::string& name, std::span<float> values, Share share) override;
  void number(const std::string& name, double& value, Share share) override;

 private:
  float factor_;
};

using Factors = std::map<std::string, double>;  // by parameter

// Multiplies the momentum u of the named parameters.
class Multiply final : public StateVisitor {
 public:
  explicit Multiply(const Factors& factors) : factors_(factors) {}
  void tensor(const std::string& name, std::span<float> values, Share share) override;
  void number(const std::string&, double&, Share) override {}

 private:
  const Factors& factors_;
};

}  // namespace thinwire::ddp
