// limit.cu: what a gradient becomes in a step that is not taken.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/core/element.h"
#include "thinwire/core/launch.cuh"
#include "thinwire/kernels/limit.h"

namespace thinwire {
namespace {

template <typename E>
__global__ void fill_kernel(typename E::Stored* x, std::size_t count, std::size_t fours,
                            typename E::Stored value, const Verdict* verdict) {
  if (!verdict->void_step()) return;
  for (std::size_t i = thread_index(); i < fours; i += thread_count())
    store_four(x, i, {value, value, value, value});
  for (std::size_t i = 4 * fours + thread_index(); i < count; i += thread_count()) x[i] = value;
}

}  // namespace

void fill_void_cuda(DType type, void* x, std::size_t count, float value, const Verdict* verdict,
                    Stream stream) {
  if (count == 0) return;
  with_element(type, "fill", [&](auto element) {
    using E = decltype(element);
    auto* out = static_cast<typename E::Stored*>(x);
    const std::size_t fours = whole_fours(count, out);
    fill_kernel<E><<<blocks_for(fours == 0 ? count : fours), block_threads, 0, handle_of(stream)>>>(
        out, count, fours, E::narrow(value), verdict);
  });
  check_launch("fill");
}

}  // namespace thinwire
