// powersgd.h: the passes of PowerSGD over a matrix and its thin factors. E is row-major. P is
// stored row by row (rows x rank), and Q transposed (rank x columns), so that every inner loop runs
// along memory. Arrays must not overlap and need no alignment.
//
// One order of additions, which vectors of every width and a GPU can follow:
//
//     P = E Q      blocks of 512 columns; a block adds column j to sum j % 16, then the sixteen
//                  sums as a tree
//     Q^T = P^T E  blocks of 128 rows; a block adds row after row
//     both         the sums of the blocks are added one after the other
//     P Q^T        an element adds its rank products one after the other
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace thinwire {

inline constexpr std::size_t powersgd_cols = 512, powersgd_rows = 128;  // of a block

// A matrix, or some of its rows and columns.
struct Panel {
  std::size_t rows = 0, cols = 0;
  std::size_t stride = 0;  // floats between the rows of E, of the average and of Q^T
  std::size_t rank = 0;
};

// E += G where G is within the limit (limit.h; elsewhere E is unchanged), then P = E Q. Returns
// whether all of G is within the limit. 12 bytes of memory traffic per element.
bool powersgd_take(const Panel& panel, const float* g, float* e, const float* q, float* p);

// Q^T = P^T E. 4 bytes per element.
void powersgd_project(const Panel& panel, const float* e, const float* p, float* q);

// average = P Q^T. 4 bytes per element.
void powersgd_give(const Panel& panel, const float* p, const float* q, float* average);

// E -= P Q^T, with the same bits as above. 8 bytes per element, from a cache where take() follows.
void powersgd_settle(const Panel& panel, const float* p, const float* q, float* e);

// The plain references. Same bits.
bool powersgd_take_reference(const Panel& panel, const float* g, float* e, const float* q,
                             float* p);
void powersgd_project_reference(const Panel& panel, const float* e, const float* p, float* q);
void powersgd_give_reference(const Panel& panel, const float* p, const float* q, float* average);
void powersgd_settle_reference(const Panel& panel, const float* p, const float* q, float* e);

}  // namespace thinwire
