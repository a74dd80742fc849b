// csc.h: the memory of a bucket (momentum u, residual v) for schemes that send whole chunks through
// a sum. Sent chunks are not cleared at once, but when the next gradient is added, chunk by chunk,
// while they are in the cache anyway. That saves a pass over memory, and undo() has nothing to copy
// back.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "thinwire/core/state.h"
#include "thinwire/core/view.h"
#include "thinwire/kernels/csc.h"
#include "thinwire/memory/csc_grid.h"
#include "thinwire/memory/summed.h"

namespace thinwire {

// How sending a chunk changes its momentum.
enum class Velocity : std::uint8_t {
  mask,  // clears it (factor masking, as in dgc): stale momentum must not pull an updated weight
  keep,  // keeps it: everything was sent, so nothing is stale; masking would disable momentum
};

// Whether all sums of take_in() are finite, so that all of the gradient was within the limit.
bool all_finite(std::span<const double> sums);

class CscMemory {
 public:
  CscMemory(const Bucket& bucket, const CscGrid& grid, const MemoryRule& rule,
            const SummedValues& values);

  // Adds the gradient to the memory, in pieces of `piece` elements (a multiple of the chunk).
  // sums[i] becomes the L1 norm of piece i of the residual. It is infinite where an element of the
  // gradient is beyond the limit (kernels/limit.h); the memory of such an element is unchanged.
  void take_in(std::span<const float> gradient, std::size_t piece, std::vector<double>& sums);

  // Writes the picked chunks of the residual to `out`, and marks them as sent. `out` has the bytes
  // of grid.packed(picks.size()) values.
  void send(Picks picks, Velocity velocity, Bytes out);

  // Takes the last send() back.
  void undo() { sent_.clear(); }

  // After undo(): removes the gradient of the last take_in() from the memory. The momentum
  // restarts.
  void forget(std::span<const float> gradient);

  void visit_state(StateVisitor& visitor);

 private:
  void settle(std::size_t first_chunk, std::size_t end_chunk);

  Bucket bucket_;
  CscGrid grid_;
  MemoryRule rule_;
  SummedValues values_;
  std::vector<float> u_, v_;  // empty where not needed
  std::vector<std::uint32_t> sent_;
  Velocity velocity_ = Velocity::mask;
  std::vector<float> packed_;  // of the last send, kept for its memory
};

}  // namespace thinwire
