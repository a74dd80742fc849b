// powersgd_cuda.h: the passes of PowerSGD over a bucket in device memory. All matrices of a bucket
// share a launch: each block has a tile of one of them. Sums have the order of kernels/powersgd.h
// and compress/basis.h, so the bits are those of the CPU.
//
//     take       v = v - (what the last step sent) + gradient, sums of blocks of P = v Q
//     project    sums of blocks of Q = v^T P
//     gather_*   adds the sums of blocks
//     basis_*    makes columns orthonormal, one thread block per matrix
//     give       average = P Q^T
//
// Every function only enqueues work on a stream.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "thinwire/core/verdict.h"
#include "thinwire/core/view.h"
#include "thinwire/kernels/powersgd.h"

namespace thinwire {

// A matrix that is sent as factors.
struct PowerSgdMatrix {
  std::uint64_t offset = 0;              // in the bucket
  std::uint64_t p = 0, q = 0;            // of its factors in all P and all Q
  std::uint64_t p_sums = 0, q_sums = 0;  // of its sums of blocks
  std::uint64_t stream = 0;              // seed of its random draws
  std::uint32_t rows = 0, cols = 0, rank = 0, unused = 0;
};

// The upper left corner of a part of a matrix.
struct PowerSgdTile {
  std::uint32_t matrix = 0, row = 0, col = 0;
};

// The part of a matrix that a thread block takes in: one block of columns. And the part that it
// projects, gives or settles: one block of rows.
inline constexpr std::uint32_t take_rows = 32, take_cols = powersgd_cols;
inline constexpr std::uint32_t give_rows = powersgd_rows, give_cols = 128;

// Tiles of matrices of one rank, which share a kernel.
struct PowerSgdGroup {
  std::uint32_t rank = 0;
  std::uint32_t first_take = 0, takes = 0;
  std::uint32_t first_give = 0, gives = 0;
};

// Uncompressed elements: where they are in the bucket and among all of these.
struct PowerSgdPiece {
  std::uint64_t offset = 0, at = 0;
  std::uint32_t count = 0, unused = 0;
};
inline constexpr std::uint32_t piece_elements = 4096;

// Set by kernels.
struct PowerSgdFlags {
  std::uint32_t given = 0;    // not 0: v still contains what the layout of this number sent
  std::uint32_t unsound = 0;  // not 0: this bucket's gradient has an element beyond the limit
};

// Everything that kernels need for one layout of the bucket, as pointers to device memory.
struct PowerSgdDevice {
  std::uint32_t layout = 0;  // its number, from 1
  std::uint32_t matrix_count = 0, piece_count = 0;
  std::uint64_t p_count = 0, q_count = 0, plain_count = 0, elements = 0;
  const PowerSgdMatrix* matrices = nullptr;
  const PowerSgdTile* takes = nullptr;
  const PowerSgdTile* gives = nullptr;
  const PowerSgdPiece* pieces = nullptr;
  PowerSgdFlags* flags = nullptr;
  float* v = nullptr;             // M of the last step, or the error
  float* p = nullptr;             // P, then the averages of uncompressed elements
  float* q = nullptr;             // orthonormal
  float* old_q = nullptr;         // q before this step
  float* mean_q = nullptr;        // the received Q
  float* own_q = nullptr;         // this worker's Q; null where it is not needed
  float* sums = nullptr;          // of blocks
  double* columns = nullptr;      // for basis_*()
  const float* kept_q = nullptr;  // mean_q or own_q: what leaves v
};

// Round 0. `out` gets P and the uncompressed elements, or a NaN in its first element where the
// gradient is beyond the limit.
void powersgd_take_cuda(const PowerSgdDevice& on, std::span<const PowerSgdGroup> groups,
                        const TensorView& gradient, float* out, Verdict* verdict, Stream stream);

// Round 1. `out` gets Q.
void powersgd_project_cuda(const PowerSgdDevice& on, std::span<const PowerSgdGroup> groups,
                           float* out, Stream stream);

// Writes the averages, unless this rank's gradient is beyond the limit. From now on v contains what
// was sent.
void powersgd_give_cuda(const PowerSgdDevice& on, std::span<const PowerSgdGroup> groups,
                        const TensorView& average, const Verdict* verdict, Stream stream);

// Subtracts what the last step of this layout sent from v, where that is still to be done.
void powersgd_settle_cuda(const PowerSgdDevice& on, std::span<const PowerSgdGroup> groups,
                          Stream stream);

// Takes a void step back, and fills the gradient.
void powersgd_conclude_cuda(const PowerSgdDevice& on, const TensorView& gradient, float fill,
                            const Verdict* verdict, Stream stream);

// P becomes orthonormal. The next q from mean_q, where a vanished direction becomes a random one.
// q from random draws.
void basis_of_p_cuda(const PowerSgdDevice& on, Stream stream);
void basis_of_q_cuda(const PowerSgdDevice& on, std::uint64_t step, Stream stream);
void basis_afresh_cuda(const PowerSgdDevice& on, std::uint64_t step, Stream stream);

}  // namespace thinwire
