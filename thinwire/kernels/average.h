// average.h: turns a sum over the workers into their mean, in place.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace thinwire {

// x *= factor. Returns whether every product is finite, so that the same pass tells whether the
// step must be skipped. All of x is scaled in either case. 8 bytes of memory traffic per element.
bool scale_finite(float* x, std::size_t count, float factor);

// The plain reference. Same bits.
bool scale_finite_reference(float* x, std::size_t count, float factor);

}  // namespace thinwire
