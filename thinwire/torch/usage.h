// usage.h: which parameters a backward has reached, as DDP counts them with find_unused_parameters
// or a static graph. DDP leaves a gradient alone when no rank has used its parameter, so whatever a
// scheme returned for it reaches nobody and must go back into memory.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include "thinwire/core/state.h"

namespace thinwire::ddp {

// DDP's own counts: one int32 per parameter of the reducer, in its order; above 0: used. The counts
// of a bucket's parameters are complete when that bucket is submitted.
struct Usage {
  const std::vector<at::Tensor>& parameters;
  const at::Tensor& counts;
  bool fixed;  // a static graph: the same in every step
};

// All parameters that DDP averages.
const std::vector<at::Tensor>& averaged_parameters(const c10d::Reducer& reducer);

// Usage on this rank. Empty if DDP does not track it: then all ranks use all parameters.
std::optional<Usage> usage_of(const c10d::Reducer& reducer);

// What came back for parameters that no rank has used; during a step, for those that this rank has
// not used.
class Unused {
 public:
  // Looks at one bucket before it is exchanged.
  void look(const Usage& usage, const std::vector<const void*>& parameters,
            const at::Tensor& gradient);
  // Collective, after the last bucket was submitted. Runs beside the exchange, and only once if the
  // usage is fixed. Without a group the counts are those of all ranks already.
  void ask(const Usage& usage, c10d::ProcessGroup* group, c10::Device device);
  // After the exchange: takes what it returned for them out of the buckets, which then hold what
  // they held before. Keys are places in the step's sequence of parameters.
  std::map<std::size_t, std::vector<float>> take(const std::vector<at::Tensor>& gradients);
  // Whether this rank has left out any parameter. On a device, look() and take() make the host wait
  // for these.
  bool any() const { return !parts_.empty(); }
  void clear();

 private:
  struct Part {
    std::size_t bucket, offset, count, place, index;  // place: in all buckets, index: in the counts
    std::vector<float> before;                        // empty: zeros
  };
  static at::Tensor part_of(const at::Tensor& gradient, const Part& part);

  std::unordered_map<const void*, std::size_t> index_;  // parameter -> place in the counts
  std::size_t bucket_ = 0, place_ = 0;
  std::vector<Part> parts_;
  at::Tensor counts_;  // of all ranks
  bool fixed_ = false;
  c10::intrusive_ptr<c10d::Work> work_;
};

// Adds to residuals, by parameter.
class Return final : public StateVisitor {
 public:
  explicit Return(const std::map<std::string, std::vector<float>>& values) : values_(values) {}
  void tensor(const std::string& name, std::span<float> values, Share share) override;
  void number(const std::string&, double&, Share) override {}

  bool took(const std::string& parameter) const { return taken_.contains(parameter); }

 private:
  const std::map<std::string, std::vector<float>>& values_;
  std::set<std::string> taken_;
};

}  // namespace thinwire::ddp
