// compressor.h: the interface of a scheme. There is one Compressor per bucket and worker; it owns
// the memory (momentum, residual) of that bucket. A step of a bucket runs in rounds, and a round is
// encode -> one collective -> decode:
//
//     for round in 0 .. rounds-1:
//       leg    = compressor.leg(step, round)           the collective, the same on every rank
//       bytes  = compressor.encode(turn, gradient, out)
//       inbox  = the collective that leg.reduction names
//       status = compressor.decode(turn, inbox, average)
//
// On a device (Site::device) gradients, payloads, inboxes and averages lie in its memory, and
// encode() and decode() only enqueue work on turn.stream: no call waits for the device. encode()
// returns leg().bytes and leaves the length in turn.written; decode() returns ok and leaves what it
// found in turn.verdict. Round 0 of all buckets is encoded before the last round of any is decoded.
// After that conclude() ends the step of each bucket.
//
// The host does not know there that a step is void, so a void step runs all its rounds. Whatever
// decode() of an earlier round has found, encode() of the next stays within its memory, changes
// nothing that conclude() cannot take back, and writes a message that no rank takes for damage: any
// numbers for a sum or a maximum, a whole frame for a gather. Nobody uses what arrives.
//
// dense, the casts and the sparse schemes have one round. terngrad (shared maximum, then values),
// csc (norms, then chunks) and powersgd (P, then Q) have two. docs/notebook/design.md
// explains each of them, on the CPU and on CUDA.
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
#include "thinwire/core/verdict.h"
#include "thinwire/core/view.h"

namespace thinwire {

enum class Reduction : std::uint8_t {
  sum,      // every rank's bytes are elements of leg.dtype, which the collective sums
  max,      // the same, maximum
  gather,   // every rank gets every rank's bytes
  scatter,  // every rank gets its own piece of every rank's bytes (all-to-all)
};

// One collective of one bucket. It follows from the configuration and the step alone, so it is the
// same on all ranks.
struct Leg {
  Reduction reduction = Reduction::sum;
  DType dtype = DType::f32;  // sum, max
  std::size_t bytes = 0;     // sum, max: exactly this many; gather: at most; scatter: per piece
  // sum, max: the collective runs on the gradient's own memory; nothing is copied.
  bool in_place = false;
};

struct Turn {
  std::uint64_t step = 0;
  int round = 0;
  Stream stream;
  double squared_norm = 0;  // of this worker's gradient over all buckets; only with needs_norm()

  // The next three are for devices only, and point to device memory.
  Verdict* verdict = nullptr;  // of this step
  // encode() of a gather writes its number of bytes there; of a scatter, those of every piece.
  std::uint64_t* written = nullptr;
  const double* norm = nullptr;  // squared_norm

  bool wanted = true;  // false: nobody reads the average, so decode() may leave it out
};

// The result of a collective. For sum and max it is one reduced payload; for gather and scatter one
// slot per rank, in rank order.
struct Inbox {
  ConstBytes data;
  std::size_t slot_bytes = 0;  // slot of rank r starts at r * slot_bytes
  // The number of bytes that each rank sent. Empty when only the slots are known (CUDA).
  std::span<const std::size_t> sizes;
  mutable int culprit = -1;  // on an error: the rank that sent bad bytes, for the error message

  ConstBytes slot(int rank) const {
    const auto r = static_cast<std::size_t>(rank);
    return data.subspan(r * slot_bytes, sizes.empty() ? slot_bytes : sizes[r]);
  }
};

class Compressor {
 public:
  virtual ~Compressor() = default;

  virtual int rounds() const { return 1; }

  // True when a step must be decoded before the next one is encoded. Otherwise several steps may be
  // in flight; they are decoded in the order in which they were encoded.
  virtual bool in_turn() const { return rounds() > 1; }

  // True when encode() needs the norm of the whole gradient (global clipping). The exchange then
  // waits for all buckets before it encodes the first: exact, but without overlap.
  virtual bool needs_norm() const { return false; }

  virtual Leg leg(std::uint64_t step, int round) const = 0;

  // Adds the gradient to the memory (in round 0), writes this rank's bytes of the round to `out`,
  // and returns their number. `out` is leg().bytes long (with in_place it is the gradient itself).
  // Nobody else changes it until decode() of the round. For a scatter it has a slot of that length
  // per rank, and piece_sizes() tells how much of each is filled. Elements beyond the limit
  // (kernels/limit.h: NaN, Inf, or too large) never enter the memory. They produce bytes for which
  // decode() returns Code::skipped on every rank.
  virtual std::size_t encode(const Turn& turn, TensorView gradient, Bytes out) = 0;

  // Whether all elements of the last encoded gradient were within the limit. Schemes with a memory
  // always know. Schemes without one may return nothing.
  virtual std::optional<bool> sound() const { return std::nullopt; }

  // After encode() of a scatter: the number of bytes for each rank. encode() returned their sum.
  virtual std::span<const std::size_t> piece_sizes() const { return {}; }

  // Processes the result of the collective. The last round replaces the gradient by the average
  // over the workers. Earlier rounds must not change it, because forget() may need it.
  // Code::skipped means that a rank's gradient was beyond the limit; `average` is then unspecified,
  // and the exchange calls undo() or forget().
  virtual Status decode(const Turn& turn, const Inbox& inbox, TensorView average) = 0;

  // Whether decode() of this round changes the memory, or what a later encode() writes. Where it
  // does not, ranks in one process let the first of them decode for all (virtual_exchange.h).
  virtual bool learns(int /*round*/) const { return true; }

  // Takes the last encoded step back: what was sent returns to the memory, so that nothing is lost.
  // It is called only after round 0 of that step was encoded, and before the next encode().
  virtual void undo(const Turn& turn) = 0;

  // The same on a rank whose gradient was beyond the limit, in this bucket or another. The memory
  // keeps nothing of the step. The earlier residual stays, up to rounding; the momentum restarts.
  // `gradient` is what was encoded. take_out() in kernels/limit.h does this element by element.
  virtual void forget(const Turn& turn, TensorView /*gradient*/) { undo(turn); }

  // On a device, in place of undo() and forget(): when the step's verdict is that it is not taken,
  // takes it back and fills the gradient with `fill` (0 or NaN); else does nothing. decode() does
  // not change the gradient of a rank that is not sound, because it is needed here.
  virtual void conclude(const Turn&, TensorView /*gradient*/, float /*fill*/) {}

  // On a device, for those who compress averages (exchange split): keep() copies the memory aside
  // before encode(). restore() stands in place of conclude(): when the step is not taken, it puts
  // the copy back, to the bit. By default both throw: the scheme cannot be a second compressor.
  virtual void keep(const Turn& turn);
  virtual void restore(const Turn& turn);

  // On a device it waits for the work of turn.stream of the last call.
  virtual void visit_state(StateVisitor& visitor) = 0;
};

}  // namespace thinwire
