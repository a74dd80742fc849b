// csc.h: a bucket's memory for schemes that send whole chunks through a sum: momentum u and
// residual v. What was sent is not cleared at once but when the next gradient is taken in, chunk by
// chunk, while it is in the cache anyway: that costs no pass of its own, and until then undo() has
// nothing to copy back.
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

// What becomes of the momentum of chunks that were sent.
enum class Velocity : std::uint8_t {
  mask,  // factor masking, as in dgc: stale momentum must not pull a weight that was just updated
  keep,  // everything was sent: nothing is stale, and masking would switch momentum off
};

// Whether all sums of take_in() are: all of the gradient was within the limit.
bool all_finite(std::span<const double> sums);

class CscMemory {
 public:
  CscMemory(const Bucket& bucket, const CscGrid& grid, const MemoryRule& rule,
            const SummedValues& values);

  // Takes the gradient in, piece by piece (`piece`: elements, a multiple of the chunk). sums[i] is
  // the L1 norm of piece i of what is to be sent, infinite where an element of the gradient was
  // beyond the limit (kernels/limit.h): such elements kept their memory.
  void take_in(std::span<const float> gradient, std::size_t piece, std::vector<double>& sums);

  // Writes the picked chunks of the residual, which counts as sent from now on. `out` has the bytes
  // of values for grid.packed(picks.size()) elements.
  void send(Picks picks, Velocity velocity, Bytes out);

  // The chunks sent last were not sent after all.
  void undo() { sent_.clear(); }

  // After undo(): what take_in() took leaves the memory again, and momentum starts anew.
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
