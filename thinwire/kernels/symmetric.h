// symmetric.h: the two slow passes of an eigendecomposition: the Gram matrix of some rows, and a
// step of the reduction to tridiagonal form. Rows are padded with zeros to the stride, a multiple
// of symmetric_block, so that vectors need no remainder loop. Every sum runs in the order of the
// rows, so every vector width gives the same bits. Arrays must not overlap.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace thinwire {

inline constexpr std::size_t symmetric_block = 8;  // doubles: a cache line

// G += A^T A for `rows` rows of A. The products are summed first and then added to G. G is
// stride x stride; only the blocks on and above its diagonal are written.
void symmetric_gram(const double* a, std::size_t rows, std::size_t stride, double* g);

// G -= u w^T + w u^T, then product = G v, for the first `size` rows of G and its columns up to the
// next multiple of a block. G is symmetric, so the product is a sum of its rows.
void symmetric_step(double* g, std::size_t size, std::size_t stride, const double* u,
                    const double* w, const double* v, double* product);

// The plain references. Same bits.
void symmetric_gram_reference(const double* a, std::size_t rows, std::size_t stride, double* g);
void symmetric_step_reference(double* g, std::size_t size, std::size_t stride, const double* u,
                              const double* w, const double* v, double* product);

}  // namespace thinwire
