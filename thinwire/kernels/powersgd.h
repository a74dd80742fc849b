// powersgd.h: the passes of PowerSGD over a matrix and its thin factors. E is row-major. P is
// stored row by row (rows x rank), and Q transposed (rank x columns), so that every inner loop runs
// along memory. The order of additions is the same on every vector width: a product of rows adds
// column j to sum j % 16 and then the sixteen sums as a tree; a product of columns adds row after
// row; an element of P Q^T adds its rank products one after the other. Arrays must not overlap and
// need no alignment.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace thinwire {

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
