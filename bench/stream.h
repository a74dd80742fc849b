// stream.h: floors for benchmarks: the simplest loops over the bytes that a kernel must move, at
// full vector width. No kernel can be faster than these by more than noise, and our kernels are
// reported as a multiple of them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace thinwire {

// 20 bytes per element, like DGC with momentum: u = (u + g)/2, v = (v + u)/2. The halving keeps
// repeats from overflowing or decaying to denormals.
void stream_read3_write2(const float* g, float* u, float* v, std::size_t count);
void stream_read3_write2_reference(const float* g, float* u, float* v, std::size_t count);

// 4 bytes per element. Returns the largest magnitude (0 when empty): a result that needs every
// element but no order. It is undefined if x has a NaN.
float stream_read(const float* x, std::size_t count);
float stream_read_reference(const float* x, std::size_t count);

// 8 bytes per element, by plain stores. The arrays must not overlap.
void stream_copy(const float* from, float* to, std::size_t count);
void stream_copy_reference(const float* from, float* to, std::size_t count);

}  // namespace thinwire
