// csc_cuda.h: the memory of csc.h in device memory. The same rules, so the same bits. As on the CPU
// sent chunks are cleared when the next gradient is added, so a void step has nothing to put back.
//
//     take_in    one pass over the bucket: settles what was sent, accumulates, and adds the L1
//                norms of blocks of 1024 elements, a warp each
//     norms      of chunks, from those of their blocks
//     send       packs the picked chunks, and marks them as sent
//     receive    writes the average: zeros, then the picked chunks
//     conclude   takes a void step back
//
// Every function only enqueues work on a stream, but visit_state().
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "thinwire/core/buffer.h"
#include "thinwire/core/verdict.h"
#include "thinwire/memory/csc.h"
#include "thinwire/memory/strata.h"

namespace thinwire {

// What was sent of a chunk, and what becomes of its momentum.
enum class Sent : std::uint8_t { nothing, masked, kept };

// Everything that kernels need. Pointers are to device memory.
struct CscDevice {
  MemoryRule rule;
  SummedRule values;
  std::uint32_t elements = 0, chunk = 1, chunks = 0;
  std::uint32_t blocks = 0;  // of a chunk; 0 where no norms are wanted
  float* u = nullptr;
  float* v = nullptr;
  Sent* sent = nullptr;              // per chunk; null without a residual
  double* block_norms = nullptr;     // infinite where an element is beyond the limit
  std::uint32_t* unsound = nullptr;  // not 0: this bucket's gradient has such an element
};

// The chunks that a step sends, ascending: a list in device memory, or draws.
struct CscPicks {
  const std::uint32_t* list = nullptr;
  Strata strata{};
  std::uint64_t stream = 0;  // of the draws

  THINWIRE_HD std::uint32_t at(std::uint32_t i) const {
    return list != nullptr ? list[i] : strata.pick(stream, i);
  }
};

class CscCudaMemory {
 public:
  // Without `norms` there is no memory for them.
  CscCudaMemory(const Bucket& bucket, const CscGrid& grid, const MemoryRule& rule,
                const SummedValues& values, bool norms, Device device);

  // Adds the gradient to the memory.
  void take_in(const TensorView& gradient, Verdict* verdict, Stream stream);

  // Writes `count` elements of the picked chunks to `out`, in the type of the sum, and marks the
  // chunks as sent. Without a memory they come from the gradient, each times the length of its
  // stratum.
  void send(const CscPicks& picks, std::size_t count, Velocity velocity, const TensorView& gradient,
            std::byte* out, Stream stream);

  // Replaces the first element that send() wrote with a NaN, where the gradient is beyond the
  // limit.
  void condemn(float* out, Stream stream);

  // The average from the sum of what send() wrote. A sum that is not finite skips the step.
  void receive(const CscPicks& picks, std::size_t count, const std::byte* sum,
               const TensorView& average, Verdict* verdict, Stream stream) const;

  // Takes a void step back, and fills the gradient.
  void conclude(const TensorView& gradient, float fill, const Verdict* verdict, Stream stream);

  // Waits for the device.
  void visit_state(StateVisitor& visitor, Stream stream);

  const CscDevice& device() const { return on_; }

 private:
  Bucket bucket_;
  CscDevice on_;
  Buffer u_, v_, sent_, block_norms_, unsound_;
};

// The kernels (csc.cu).
void csc_take_in(const CscDevice& on, const TensorView& gradient, Verdict* verdict, Stream stream);
void csc_send(const CscDevice& on, const CscPicks& picks, std::size_t count, Sent how,
              const TensorView& gradient, std::byte* out, Stream stream);
void csc_condemn(const CscDevice& on, float* out, Stream stream);
void csc_receive(const CscDevice& on, const CscPicks& picks, std::size_t count,
                 const std::byte* sum, const TensorView& average, Verdict* verdict, Stream stream);
void csc_conclude(const CscDevice& on, const TensorView& gradient, float fill,
                  const Verdict* verdict, Stream stream);
void csc_settle(const CscDevice& on, Stream stream);

}  // namespace thinwire
