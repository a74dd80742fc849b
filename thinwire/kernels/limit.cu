// limit.cu: the limit of a gradient, and the way back from a step that is not taken.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/core/element.h"
#include "thinwire/core/launch.cuh"
#include "thinwire/kernels/limit.h"

namespace thinwire {
namespace {

template <typename E>
__global__ void check_kernel(const typename E::Stored* x, std::size_t count, std::size_t fours,
                             Verdict* verdict) {
  bool within = true;
  const auto look = [&](typename E::Stored value) {
    within = within_limit(E::widen(value)) && within;
  };
  for (std::size_t i = thread_index(); i < fours; i += thread_count()) {
    const auto in = load_four(x, i);
    look(in.at[0]), look(in.at[1]), look(in.at[2]), look(in.at[3]);
  }
  for (std::size_t i = 4 * fours + thread_index(); i < count; i += thread_count()) look(x[i]);
  if (!within) verdict->unsound = 1;
}

// One element at a time: a step is rarely taken back.
template <typename E>
__global__ void take_out_kernel(Accumulate accumulate, const float* scale,
                                const typename E::Stored* g, float* u, float* v, std::size_t count,
                                const Verdict* verdict) {
  if (verdict->unsound == 0) return;
  const float factor = scale == nullptr ? 1.0f : *scale;
  for (std::size_t i = thread_index(); i < count; i += thread_count()) {
    const float before = has_momentum(accumulate) ? u[i] : 0;
    v[i] = taken_out(accumulate, factor * E::widen(g[i]), 0, before, v[i]);
    if (has_momentum(accumulate)) u[i] = 0;
  }
}

template <typename E>
__global__ void fill_kernel(typename E::Stored* x, std::size_t count, std::size_t fours,
                            typename E::Stored value, const Verdict* verdict) {
  if (!verdict->void_step()) return;
  for (std::size_t i = thread_index(); i < fours; i += thread_count())
    store_four(x, i, {value, value, value, value});
  for (std::size_t i = 4 * fours + thread_index(); i < count; i += thread_count()) x[i] = value;
}

}  // namespace

void all_within_limit_cuda(DType type, const void* x, std::size_t count, Verdict* verdict,
                           Stream stream) {
  if (count == 0) return;
  with_element(type, "limit", [&](auto element) {
    using E = decltype(element);
    const auto* in = static_cast<const typename E::Stored*>(x);
    const std::size_t fours = whole_fours(count, in);
    check_kernel<E>
        <<<blocks_for(fours == 0 ? count : fours), block_threads, 0, handle_of(stream)>>>(
            in, count, fours, verdict);
  });
  check_launch("limit");
}

void take_out_cuda(Accumulate accumulate, const float* scale, DType type, const void* g, float* u,
                   float* v, std::size_t count, const Verdict* verdict, Stream stream) {
  if (count == 0 || accumulate == Accumulate::none) return;
  with_element(type, "take out", [&](auto element) {
    using E = decltype(element);
    take_out_kernel<E><<<blocks_for(count), block_threads, 0, handle_of(stream)>>>(
        accumulate, scale, static_cast<const typename E::Stored*>(g), u, v, count, verdict);
  });
  check_launch("take out");
}

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
