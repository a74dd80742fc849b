// chunk_nohwy.cc: the chunk pass where Highway is not installed.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/chunk.h"

namespace thinwire {

double chunk_pass(const ChunkRule& rule, const float* g, float* u, float* v, std::size_t count) {
  return chunk_pass_reference(rule, g, u, v, count);
}

}  // namespace thinwire
