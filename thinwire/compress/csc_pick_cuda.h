// csc_pick_cuda.h: the norms of chunks in device memory, and the choice of the largest. Every
// function only enqueues work on a stream.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "thinwire/memory/csc_cuda.h"

namespace thinwire {

// Writes the mean magnitude of every chunk as its part of a sum of type as.dtype: NaN where an
// element of the gradient is beyond the limit. With `masked`, chunks that were just sent have 0.
void csc_write_norms(const CscDevice& on, const SummedRule& as, bool masked, std::byte* out,
                     Stream stream);

// From the sum to the norms. One that is not finite skips the step.
void csc_read_norms(const SummedRule& as, const std::byte* sum, std::uint32_t chunks, float* norms,
                    Verdict* verdict, Stream stream);

// The numbers of the `wanted` chunks with the largest norms, ascending; among equals the lower
// number comes first.
void csc_pick(const float* norms, std::uint32_t chunks, std::uint32_t wanted, std::uint32_t* picks,
              Stream stream);

// Puts the norms of the step before back when the step is void.
void csc_restore_norms(float* norms, const float* before, std::uint32_t chunks,
                       const Verdict* verdict, Stream stream);

}  // namespace thinwire
