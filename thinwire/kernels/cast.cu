// cast.cu: elements of one type as another, times a factor.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/core/launch.cuh"
#include "thinwire/kernels/cast.h"

namespace thinwire {
namespace {

// x and out may be the same array, so neither is __restrict__.
template <typename From, typename To>
__global__ void cast_kernel(const typename From::Stored* x, typename To::Stored* out,
                            std::size_t count, std::size_t fours, float factor, Verdict* verdict) {
  bool finite = true;
  const auto one = [&](typename From::Stored value) {
    const auto result = cast_one<From, To>(value, factor);
    finite = is_finite(To::widen(result)) && finite;
    return result;
  };
  for (std::size_t i = thread_index(); i < fours; i += thread_count()) {
    const auto in = load_four(x, i);
    store_four(out, i, {one(in.at[0]), one(in.at[1]), one(in.at[2]), one(in.at[3])});
  }
  for (std::size_t i = 4 * fours + thread_index(); i < count; i += thread_count())
    out[i] = one(x[i]);
  if (!finite && verdict != nullptr) verdict->skipped = 1;
}

}  // namespace

void cast_cuda(DType from, const void* x, DType to, void* out, std::size_t count, float factor,
               Verdict* verdict, Stream stream) {
  if (count == 0) return;
  with_element(from, "cast", [&](auto source) {
    with_element(to, "cast", [&](auto target) {
      using From = decltype(source);
      using To = decltype(target);
      const auto* in = static_cast<const typename From::Stored*>(x);
      auto* result = static_cast<typename To::Stored*>(out);
      const std::size_t fours = whole_fours(count, in, result);
      cast_kernel<From, To>
          <<<blocks_for(fours == 0 ? count : fours), block_threads, 0, handle_of(stream)>>>(
              in, result, count, fours, factor, verdict);
      check_launch("cast");
    });
  });
}

}  // namespace thinwire
