// powersgd_layout.h: which parameters of a bucket travel as two thin factors, and where these lie; how the
// work on a matrix is cut into pieces for threads.
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

// A parameter that travels as factors: where it lies in the bucket, and its factors among all P and
// all Q.
struct ThinMatrix {
  std::string name;
  std::size_t offset = 0, rows = 0, cols = 0, rank = 0;
  std::size_t p = 0, q = 0;
  std::uint64_t stream = 0;  // of its random draws: the same on all ranks and in any bucket
};

// Elements that travel as they are.
struct PlainPart {
  std::size_t offset = 0, count = 0;
};

struct PowerSgdLayout {
  std::vector<ThinMatrix> matrices;
  std::vector<PlainPart> plain;
  std::size_t p = 0, q = 0, plain_count = 0;  // floats of each kind
};

// A matrix travels as factors of `rank` columns (fewer where it has fewer itself) when they have
// less than 1 / rate of its elements.
PowerSgdLayout lay_out(const Bucket& bucket, std::size_t rank, double rate, std::uint64_t seed);

// Calls body(panel, first row): pieces for passes in which a row's results are its own.
template <typename Body>
void for_rows(const ThinMatrix& matrix, Body body) {
  constexpr std::size_t elements = 1 << 16;
  const std::size_t extent = std::max<std::size_t>(1, elements / matrix.cols);
  parallel_for((matrix.rows + extent - 1) / extent, [&](std::size_t piece) {
    const std::size_t first = piece * extent, rows = std::min(extent, matrix.rows - first);
    body(Panel{rows, matrix.cols, matrix.cols, matrix.rank}, first);
  });
}

// Calls body(panel, first column): pieces for passes in which a column's results are its own; their
// Q^T stays in the first-level cache.
template <typename Body>
void for_cols(const ThinMatrix& matrix, Body body) {
  constexpr std::size_t extent = 512;
  parallel_for((matrix.cols + extent - 1) / extent, [&](std::size_t piece) {
    const std::size_t first = piece * extent, cols = std::min(extent, matrix.cols - first);
    body(Panel{matrix.rows, cols, matrix.cols, matrix.rank}, first);
  });
}

}  // namespace thinwire
