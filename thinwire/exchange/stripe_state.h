// stripe_state.h: saves the state of the stripes' compressors as if the bucket had not been cut.
// Tensors of cut parameters are joined, so that a checkpoint does not depend on the cuts.
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

// Sits between the stripes' compressors and a visitor. Pass it to one stripe after the other, then
// call join(). A compressor's memory may be a copy that goes when its visit ends, so the parts of
// cut parameters are collected in a first pass, and written back in a second.
class StripeVisitor final : public StateVisitor {
 public:
  // `place` is the name prefix of state that belongs to a stripe but to no parameter:
  // "bucket3/stripe".
  StripeVisitor(StateVisitor& to, const Bucket& bucket, std::string place)
      : to_(to), bucket_(bucket), place_(std::move(place)) {}

  // All following visits belong to this stripe, which has number `index`.
  void enter(const Stripe& stripe, std::size_t index);
  // Shows the visitor the joined tensors. Returns whether there are any: then pass this object to
  // all stripes again.
  bool join();

  void tensor(const std::string& name, std::span<float> values, Share share) override;
  void number(const std::string& name, double& value, Share share) override;

 private:
  struct Whole {
    Share share = Share::summed;
    std::vector<float> values;
    std::size_t given = 0;  // elements that the second pass has written back
  };

  std::string rename(const std::string& name) const;

  StateVisitor& to_;
  const Bucket& bucket_;
  std::string place_;
  const Stripe* stripe_ = nullptr;
  std::string prefix_;                 // "bucket3/stripe1/"
  std::map<std::string, Whole> cuts_;  // by the name of the joined tensor
  bool joined_ = false;                // the second pass has begun
};

// An owner's residual of averages, read from an entry's name: "PARAMETER/owner/v" or
// "PARAMETER[from:to]/owner/v".
struct OwnedResidual {
  std::string parameter;
  std::size_t from = 0;  // its first element in the parameter
};
std::optional<OwnedResidual> owned_residual(const std::string& name, const StateEntry& entry);

// values[from + i] += factor * part[i]; `values` grows where it is too short.
void add_part(std::vector<float>& values, std::size_t from, std::span<const float> part,
              float factor);

// For another cut, scheme or number of workers: adds the owners' residuals in a rank's state to the
// rank's own residual, "PARAMETER/v". They belong to averages over `workers`, so each counts that
// many times: the sum of all residuals stays the same.
void fold_owned(State& state, const std::vector<Bucket>& buckets, int workers);

// A copy of an object's state, to restore it later.
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
