// stream.h: floors for benchmarks. The simplest loops over the bytes that a kernel must move, at
// full vector width: no kernel can be faster than these by more than noise, and ours are reported
// as a multiple of them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace thinwire {

// 20 bytes per element, as DGC with momentum: u = (u + g)/2, v = (v + u)/2. Halved so that repeats
// neither overflow nor fade to denormals.
void stream_read3_write2(const float* g, float* u, float* v, std::size_t count);
void stream_read3_write2_reference(const float* g, float* u, float* v, std::size_t count);

// 4 bytes per element. The largest magnitude (0 when empty): an answer that needs every element and
// no order. With a NaN in x it is undefined.
float stream_read(const float* x, std::size_t count);
float stream_read_reference(const float* x, std::size_t count);

// 8 bytes per element, by plain stores. The arrays must not overlap.
void stream_copy(const float* from, float* to, std::size_t count);
void stream_copy_reference(const float* from, float* to, std::size_t count);

}  // namespace thinwire
