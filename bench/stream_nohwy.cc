// stream_nohwy.cc: floors for benchmarks when Highway is not installed.
// SPDX-License-Identifier: Apache-2.0
#include "bench/stream.h"

namespace thinwire {

void stream_read3_write2(const float* g, float* u, float* v, std::size_t count) {
  stream_read3_write2_reference(g, u, v, count);
}

float stream_read(const float* x, std::size_t count) { return stream_read_reference(x, count); }

void stream_copy(const float* from, float* to, std::size_t count) {
  stream_copy_reference(from, to, count);
}

}  // namespace thinwire
