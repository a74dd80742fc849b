// average.h: from a sum over workers to their mean, in place.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace thinwire {

// x *= factor. True when every product is finite: the same pass tells whether the step must be
// skipped. All of x is scaled either way. 8 bytes of memory traffic per element.
bool scale_finite(float* x, std::size_t count, float factor);

// The same, one element after the other. Same bits.
bool scale_finite_reference(float* x, std::size_t count, float factor);

}  // namespace thinwire
