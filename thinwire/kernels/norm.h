// norm.h: the squared norm of a gradient, for clipping. Element i is added to sum i % 16, and the
// sixteen sums are added as a tree: an order that no vector width changes, so every machine gets
// the same bits. Squares of floats are exact in double, and no number of finite floats overflows.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace thinwire {

// The sum of x*x; not finite when an element is not finite (an infinite element alone gives +Inf;
// which NaN a NaN gives is not promised). 4 bytes of memory traffic per element.
double squared_norm(const float* x, std::size_t count);

// The same, one element after the other. Same bits.
double squared_norm_reference(const float* x, std::size_t count);

// The two steps of it, shared so that both add in one order: elements into the sixteen sums,
// starting at sum 0, and the sums into one.
void add_squares(const float* x, std::size_t count, double* sums);
double add_sums(const double* sums);
float add_sums(const float* sums);

}  // namespace thinwire
