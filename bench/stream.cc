// stream.cc: floors for benchmarks, one element at a time.
// SPDX-License-Identifier: Apache-2.0
#include "bench/stream.h"

#include <algorithm>
#include <cmath>

namespace thinwire {

void stream_read3_write2_reference(const float* g, float* u, float* v, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    u[i] = 0.5f * (u[i] + g[i]);
    v[i] = 0.5f * (v[i] + u[i]);
  }
}

float stream_read_reference(const float* x, std::size_t count) {
  float largest = 0;
  for (std::size_t i = 0; i < count; ++i) largest = std::max(largest, std::fabs(x[i]));
  return largest;
}

void stream_copy_reference(const float* from, float* to, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) to[i] = from[i];
}

}  // namespace thinwire
