// compressor.h: what a scheme is, seen from the exchange. One Compressor per bucket and worker; it
// owns the memory (momentum, residual) of that bucket. A step of a bucket runs in rounds; a round
// is encode -> one collective -> decode:
//
//     for round in 0 .. rounds-1:
//       leg    = compressor.leg(step, round)           what travels, the same on every rank
//       bytes  = compressor.encode(turn, gradient, out)
//       inbox  = the collective that leg.reduction names
//       status = compressor.decode(turn, inbox, average)
//
// dense, casts, sparse schemes: one round. TernGrad (shared maximum, then values), CSC (norms, then
// chunks) and PowerSGD (P, then Q): two. docs/design.md works each of them through on paper, on CPU
// and on CUDA.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "thinwire/core/device.h"
#include "thinwire/core/state.h"
#include "thinwire/core/status.h"
#include "thinwire/core/view.h"

namespace thinwire {

enum class Reduction : std::uint8_t {
  sum,      // all ranks' bytes are elements of leg.dtype, summed in the collective
  max,      // the same, maximum
  gather,   // every rank gets every rank's bytes
  scatter,  // every rank gets its own piece of every rank's bytes (all-to-all)
};

// One collective of one bucket. The same on all ranks by construction: it follows from
// configuration and step alone.
struct Leg {
  Reduction reduction = Reduction::sum;
  DType dtype = DType::f32;  // sum, max
  std::size_t bytes = 0;     // sum, max: exactly this many; gather: at most; scatter: per piece
  bool in_place =
      false;  // sum, max: the collective runs on the gradient's own memory, nothing is copied
};

struct Turn {
  std::uint64_t step = 0;
  int round = 0;
  Stream stream;
  double squared_norm =
      0;  // of this worker's gradient over all buckets; only where needs_norm() asks for it
};

// What a collective brought. For sum and max: one reduced payload. For gather and scatter: one slot
// per rank, in rank order.
struct Inbox {
  ConstBytes data;
  std::size_t slot_bytes = 0;  // slot of rank r starts at r * slot_bytes
  std::span<const std::size_t>
      sizes;                 // bytes that each rank sent; empty when only slots are known (CUDA)
  mutable int culprit = -1;  // on an error: the rank whose bytes were bad, for the message

  ConstBytes slot(int rank) const {
    const auto r = static_cast<std::size_t>(rank);
    return data.subspan(r * slot_bytes, sizes.empty() ? slot_bytes : sizes[r]);
  }
};

class Compressor {
 public:
  virtual ~Compressor() = default;

  virtual int rounds() const { return 1; }

  // True when a step must have been decoded before the next is encoded. Otherwise several steps may
  // be under way; they are decoded in the order in which they were encoded.
  virtual bool in_turn() const { return rounds() > 1; }

  // True when encode() needs the norm of the whole gradient (global clipping). The exchange then
  // waits for all buckets before it encodes the first: exact, but without overlap.
  virtual bool needs_norm() const { return false; }

  virtual Leg leg(std::uint64_t step, int round) const = 0;

  // Takes the gradient into memory (round 0) and writes this rank's bytes of the round; returns how
  // many. `out` is leg().bytes long (with in_place: the gradient itself), and stays untouched by
  // others until decode() of the round; for a scatter it has a slot of that length per rank, and
  // piece_sizes() says how much of each is filled. Elements beyond the limit (kernels/limit.h: NaN,
  // Inf, or too large) never enter the memory; they make bytes that every rank's decode() answers
  // with Code::skipped.
  virtual std::size_t encode(const Turn& turn, TensorView gradient, Bytes out) = 0;

  // Whether all elements of the gradient encoded last were within the limit. Schemes with a memory
  // know, always; those without may not have looked.
  virtual std::optional<bool> sound() const { return std::nullopt; }

  // After encode() of a scatter: the bytes for each rank. Their sum is what encode() returned.
  virtual std::span<const std::size_t> piece_sizes() const { return {}; }

  // Takes in what the collective brought. The last round writes the average over the workers, in
  // place of the gradient; earlier rounds leave it alone, since forget() may need it. Code::skipped:
  // a rank's gradient was beyond the limit; `average` is then unspecified, and the exchange calls
  // undo() or forget().
  virtual Status decode(const Turn& turn, const Inbox& inbox, TensorView average) = 0;

  // The step encoded last did not take place: put back what was sent, so that nothing is lost. Only
  // after round 0 of that step was encoded, and before the next encode.
  virtual void undo(const Turn& turn) = 0;

  // The same on a rank whose gradient was beyond the limit, in this bucket or another: memory keeps
  // nothing of the step. What waited there before stays, to rounding; momentum starts anew.
  // `gradient` is what was encoded. kernels/limit.h has the way back, element by element.
  virtual void forget(const Turn& turn, std::span<const float> /*gradient*/) { undo(turn); }

  virtual void visit_state(StateVisitor& visitor) = 0;
};

}  // namespace thinwire
