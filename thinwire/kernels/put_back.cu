// put_back.cu: a copy that looks at the verdict first.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/core/launch.cuh"
#include "thinwire/kernels/put_back.h"

namespace thinwire {
namespace {

__global__ void put_back_kernel(std::uint32_t* to, const std::uint32_t* from, std::size_t words,
                                const Verdict* verdict) {
  if (!verdict->void_step()) return;
  for (std::size_t i = thread_index(); i < words; i += thread_count()) to[i] = from[i];
}

}  // namespace

void put_back_cuda(std::uint32_t* to, const std::uint32_t* from, std::size_t words,
                   const Verdict* verdict, Stream stream) {
  if (words == 0) return;
  put_back_kernel<<<blocks_for(words), block_threads, 0, handle_of(stream)>>>(to, from, words,
                                                                              verdict);
  check_launch("put_back");
}

}  // namespace thinwire
