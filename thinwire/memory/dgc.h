// dgc.h: a bucket's memory for sparse schemes: momentum u and residual v, and the step that takes a
// gradient in and takes the survivors out (kernels/dgc.h is its inner loop). Gradient dropping is
// the same without u, plain top-k without both.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "thinwire/core/state.h"
#include "thinwire/core/view.h"
#include "thinwire/kernels/dgc.h"
#include "thinwire/memory/quota.h"

namespace thinwire {

struct DgcMemoryOptions {
  Accumulate accumulate = Accumulate::momentum;
  float momentum = 0.9f;
  bool exact = false;      // exactly the largest instead of a steered threshold
  bool per_layer = false;  // a quota and threshold per parameter instead of per bucket
  bool mask = true;        // factor masking: what is sent loses its momentum
};

// What a step took out, in ascending order of index.
struct Survivors {
  std::vector<std::uint32_t> index;
  std::vector<float> value;
  std::vector<float> velocity;  // u at the index before it was masked; empty without momentum

  std::size_t size() const { return index.size(); }
};

class DgcMemory {
 public:
  DgcMemory(const Bucket& bucket, const DgcMemoryOptions& options);
  ~DgcMemory();

  // The sum of the quotas' caps at this density: no step takes out more.
  std::size_t most(double density) const;

  // Takes scale * gradient in and the survivors out. False when something was beyond the limit
  // (kernels/limit.h): the elements concerned then kept their memory, and the caller must undo()
  // what was taken out.
  bool step(std::span<const float> gradient, float scale, double density, std::uint64_t number,
            Survivors& out);

  // `sent` is what the receivers decode for each survivor: the difference stays in the residual.
  void settle(const Survivors& survivors, std::span<const float> sent);

  // The survivors were not sent after all: memory is as if none had passed the threshold.
  void undo(const Survivors& survivors);

  // After undo(): what the step took in leaves the memory again. Momentum and thresholds start anew.
  void forget(std::span<const float> gradient, float scale);

  void visit_state(StateVisitor& visitor);

  std::span<float> residual() { return v_; }
  std::span<float> velocity() { return u_; }

 private:
  struct Segment {
    std::size_t first = 0, count = 0;
    Threshold threshold;
  };
  struct List;  // survivors of one thread's share

  double estimate(const Segment& segment, const DgcRule& rule, std::span<const float> gradient,
                  const Quota& quota, std::uint64_t number);
  bool sweep(Segment& segment, DgcRule rule, std::span<const float> gradient, const Quota& quota,
             Survivors& out);
  void restore(std::uint32_t index, float value, float velocity);

  Bucket bucket_;
  DgcMemoryOptions options_;
  std::vector<float> u_, v_;  // empty where not needed
  std::vector<Segment> segments_;
  std::vector<List> lists_;  // one per thread, kept for their memory
  double density_ = 0;       // of the last step: another one makes thresholds unknown
};

}  // namespace thinwire
