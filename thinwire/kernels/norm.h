// norm.h: the squared norm of a gradient, for clipping. Element i is added to sum i % 16, and the
// sixteen sums are added as a tree. Every vector width gives this order, so every machine gets the
// same bits. Squares of floats are exact in double, and finite floats cannot overflow their sum.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace thinwire {

// The sum of x*x. It is not finite when an element is not finite: infinite elements give +Inf, a
// NaN gives some NaN. 4 bytes of memory traffic per element.
double squared_norm(const float* x, std::size_t count);

// The plain reference. Same bits.
double squared_norm_reference(const float* x, std::size_t count);

// The two parts that both share, so that they add in one order: the elements into sixteen sums,
// starting at sum 0, and the sixteen sums into one.
void add_squares(const float* x, std::size_t count, double* sums);
double add_sums(const double* sums);
float add_sums(const float* sums);

}  // namespace thinwire
