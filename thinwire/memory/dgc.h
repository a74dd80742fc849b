// dgc.h: the memory of a bucket (momentum u, residual v) for sparse schemes, and the step that adds
// a gradient and takes the survivors out (kernels/dgc.h is its inner loop). Gradient dropping has
// no u; plain top-k has neither.
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
  Accumulate accumulate = Accumulate::pool;
  float momentum = 0.9f;
  bool exact = false;      // exactly the largest elements, instead of a steered threshold
  bool per_layer = false;  // a quota and a threshold per parameter, instead of per bucket
  bool mask = false;       // sent elements lose their momentum: factor masking, as in the paper
};

// The largest number of survivors of a step at this density: the sum of the quotas' caps.
std::size_t most_survivors(const Bucket& bucket, const DgcMemoryOptions& options, double density);

// The survivors of a step, in ascending order of index.
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

  // Adds scale * gradient to the memory and takes the survivors out. Returns false when an element
  // was beyond the limit (kernels/limit.h). The memory of such elements is unchanged, and the
  // caller must undo() the survivors.
  bool step(std::span<const float> gradient, float scale, double density, Survivors& out);

  // `sent` is the value that receivers decode for each survivor. The residual keeps the difference.
  void settle(const Survivors& survivors, std::span<const float> sent);

  // Puts the survivors back: the memory is as if none had passed the threshold.
  void undo(const Survivors& survivors);

  // After undo(): removes the gradient of the step from the memory (take_out() in limit.h).
  // Thresholds restart.
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

  bool sweep(Segment& segment, DgcRule rule, std::span<const float> gradient, const Quota& quota,
             Survivors& out);
  void restore(const Survivors& all, std::size_t i);  // puts one of them back

  Bucket bucket_;
  DgcMemoryOptions options_;
  std::vector<float> u_, v_;  // empty where not needed
  std::vector<Segment> segments_;
  std::vector<List> lists_;  // one per thread, kept for their memory
  double density_ = 0;       // of the last step: another one makes thresholds unknown
};

}  // namespace thinwire
