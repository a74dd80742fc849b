// powersgd_layout.h: decides which parameters of a bucket are sent as two thin factors and where
// the factors lie, and splits the work on a matrix into pieces for threads.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "thinwire/core/parallel.h"
#include "thinwire/core/view.h"
#include "thinwire/kernels/powersgd.h"

namespace thinwire {

// A parameter that is sent as factors, with its offset in the bucket and the offsets of its factors
// in all P and all Q.
struct ThinMatrix {
  std::string name;
  std::size_t offset = 0, rows = 0, cols = 0, rank = 0;
  std::size_t p = 0, q = 0;
  std::uint64_t stream = 0;  // seed of its random draws: the same on all ranks and in every bucket
};

// Elements that are sent uncompressed.
struct PlainPart {
  std::size_t offset = 0, count = 0;
};

struct PowerSgdLayout {
  std::vector<ThinMatrix> matrices;
  std::vector<PlainPart> plain;
  std::size_t p = 0, q = 0, plain_count = 0;  // floats of each kind
};

// A matrix is sent as factors of `rank` columns (at most its own rows or columns) when these have
// less than 1 / rate of its elements.
PowerSgdLayout lay_out(const Bucket& bucket, std::size_t rank, double rate, std::uint64_t seed);

// Calls body(panel, first row) in parallel, for passes in which rows are independent.
template <typename Body>
void for_rows(const ThinMatrix& matrix, Body body) {
  constexpr std::size_t elements = 1 << 16;
  const std::size_t extent = std::max<std::size_t>(1, elements / matrix.cols);
  parallel_for((matrix.rows + extent - 1) / extent, [&](std::size_t piece) {
    const std::size_t first = piece * extent, rows = std::min(extent, matrix.rows - first);
    body(Panel{rows, matrix.cols, matrix.cols, matrix.rank}, first);
  });
}

// Calls body(panel, first column) in parallel, for passes in which columns are independent. The Q^T
// of a piece stays in the L1 cache.
template <typename Body>
void for_cols(const ThinMatrix& matrix, Body body) {
  constexpr std::size_t extent = 512;
  parallel_for((matrix.cols + extent - 1) / extent, [&](std::size_t piece) {
    const std::size_t first = piece * extent, cols = std::min(extent, matrix.cols - first);
    body(Panel{matrix.rows, cols, matrix.cols, matrix.rank}, first);
  });
}

}  // namespace thinwire
