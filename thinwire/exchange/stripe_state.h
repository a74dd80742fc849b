// stripe_state.h: the state of compressors over stripes, as if the bucket had never been cut: tensors
// of cut parameters are put together again, so that a checkpoint does not depend on the cuts.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "thinwire/core/state.h"
#include "thinwire/exchange/stripes.h"

namespace thinwire {

// Stands between the stripes' compressors and a visitor. Show it stripe after stripe, then finish().
class StripeVisitor final : public StateVisitor {
 public:
  // `place` names what belongs to a stripe and to no parameter: "bucket3/stripe".
  StripeVisitor(StateVisitor& to, const Bucket& bucket, std::string place)
      : to_(to), bucket_(bucket), place_(std::move(place)) {}

  // What is visited from now on belongs to this stripe, the index-th.
  void enter(const Stripe& stripe, std::size_t index);
  void finish();

  void tensor(const std::string& name, std::span<float> values, Share share) override;
  void number(const std::string& name, double& value, Share share) override;

 private:
  struct Whole {
    std::size_t count = 0;
    Share share = Share::summed;
    std::vector<std::span<float>> parts;
  };

  std::string rename(const std::string& name) const;

  StateVisitor& to_;
  const Bucket& bucket_;
  std::string place_;
  const Stripe* stripe_ = nullptr;
  std::string prefix_;                 // "bucket3/stripe1/"
  std::map<std::string, Whole> cuts_;  // by the whole's name
};

// Whose residual of averages an entry is: "PARAMETER/owner/v" or "PARAMETER[from:to]/owner/v".
struct OwnedResidual {
  std::string parameter;
  std::size_t from = 0;  // its first element in the parameter
};
std::optional<OwnedResidual> owned_residual(const std::string& name, const StateEntry& entry);

// values[from + i] += factor * part[i]; `values` grows where it is too short.
void add_part(std::vector<float>& values, std::size_t from, std::span<const float> part,
              float factor);

// For another cut, scheme or number of workers: puts the owners' residuals of a rank's state into
// its own, under "PARAMETER/v". They are of averages over `workers`, so each counts that many times:
// what is kept overall stays the same.
void fold_owned(State& state, const std::vector<Bucket>& buckets, int workers);

// A copy of a part's state, to go back to it.
class Snapshot {
 public:
  using Visit = std::function<void(StateVisitor&)>;
  void take(const Visit& visit);
  void put_back(const Visit& visit);

 private:
  std::vector<float> tensors_;
  std::vector<double> numbers_;
};

}  // namespace thinwire
