// csc.cu: the pass over a bucket in device memory whose chunks are sent through a sum, and the way
// of chosen chunks to the sum and back. A warp adds a block of csc_block elements in the order of
// kernels/csc.h.
// SPDX-License-Identifier: Apache-2.0
#include <limits>

#include "thinwire/core/element.h"
#include "thinwire/core/launch.cuh"
#include "thinwire/memory/csc_cuda.h"

namespace thinwire {
namespace {

constexpr unsigned warp = 32;
static_assert(csc_sums == warp);

// u and v of an element when the last send() is settled.
__device__ Kept settled(const CscDevice& on, Sent sent, std::uint32_t i) {
  Kept old{on.u == nullptr ? 0 : on.u[i], 0};
  if (sent == Sent::nothing || on.values.dtype != DType::f32) old.v = on.v[i];
  if (sent == Sent::nothing) return old;
  if (sent == Sent::masked) old.u = 0;
  old.v = on.values.rest(old.v);
  return old;
}

// Elements [first, end) of one block: a chunk's, or any where no norms are wanted. A few are loaded
// before the first is stored, so that enough loads are under way.
template <typename E, Accumulate accumulate>
__device__ double take_in_block(const CscDevice& on, const typename E::Stored* gradient,
                                std::uint32_t first, std::uint32_t end, bool& bad) {
  constexpr bool has_u = has_momentum(accumulate), has_v = has_residual(accumulate);
  constexpr unsigned few = 4;
  const bool same_chunk = on.blocks != 0;
  const Sent all = has_v && same_chunk ? on.sent[first / on.chunk] : Sent::nothing;
  double sum = 0;
  // Counted from the first element, because that may be close to 2^32.
  const std::uint32_t count = end - first;
  for (std::uint32_t start = threadIdx.x % warp; start < count; start += few * warp) {
    float g[few] = {};
    Kept old[few] = {};
#pragma unroll
    for (unsigned k = 0; k < few; ++k) {
      if (start + k * warp >= count) continue;
      const std::uint32_t i = first + start + k * warp;
      g[k] = E::widen(gradient[i]);
      if (has_v) {
        const Sent sent = same_chunk ? all : on.sent[on.chunk == 1 ? i : i / on.chunk];
        old[k] = settled(on, sent, i);
      }
    }
#pragma unroll
    for (unsigned k = 0; k < few; ++k) {
      if (start + k * warp >= count) continue;
      const std::uint32_t i = first + start + k * warp;
      const bool good = within_limit(g[k]);
      const Kept now = good ? accumulated({accumulate, on.rule.momentum}, g[k], old[k]) : old[k];
      sum += good ? fabs(static_cast<double>(now.v)) : std::numeric_limits<double>::infinity();
      bad = bad || !good;
      if (has_u) on.u[i] = now.u;
      if (has_v) on.v[i] = now.v;
    }
  }
  return sum;
}

template <typename E, Accumulate accumulate>
__global__ void __launch_bounds__(block_threads)
    take_in(const CscDevice on, const typename E::Stored* gradient, std::uint64_t all_blocks,
            Verdict* verdict) {
  bool bad = false;
  for (std::uint64_t number = thread_index() / warp; number < all_blocks;
       number += thread_count() / warp) {
    std::uint64_t first = number * csc_block, limit = on.elements;
    if (on.blocks != 0) {
      const std::uint64_t chunk = number / on.blocks;
      first = chunk * on.chunk + number % on.blocks * csc_block;
      limit = min(limit, (chunk + 1) * on.chunk);
    }
    const std::uint64_t end = min(limit, first + csc_block);
    double sum = 0;
    if (first < end)
      sum = take_in_block<E, accumulate>(on, gradient, static_cast<std::uint32_t>(first),
                                         static_cast<std::uint32_t>(end), bad);
    if (on.blocks == 0) continue;
    for (unsigned half = warp / 2; half > 0; half /= 2) sum += __shfl_down_sync(~0u, sum, half);
    if (threadIdx.x % warp == 0) on.block_norms[number] = sum;
  }
  if (bad) {
    *on.unsound = 1;
    verdict->unsound = 1;
  }
}

// Where element i of the packed chunks lies in the bucket; at the end or behind it: nowhere.
struct Packed {
  std::uint32_t pick = 0, number = 0;
  std::uint64_t at = 0;
  bool starts = false;  // the first element of its chunk

  __device__ Packed(const CscDevice& on, const CscPicks& picks, std::uint32_t i) {
    number = i / on.chunk;
    pick = picks.at(number);
    at = std::uint64_t{pick} * on.chunk + i % on.chunk;
    starts = i % on.chunk == 0;
  }
};

template <typename E, typename V>
__global__ void send(const CscDevice on, const CscPicks picks, std::uint32_t count, Sent how,
                     const typename E::Stored* gradient, typename V::Stored* out) {
  for (std::uint64_t i = thread_index(); i < count; i += thread_count()) {
    const Packed packed(on, picks, static_cast<std::uint32_t>(i));
    float x = 0;
    if (packed.at < on.elements) {
      x = on.v != nullptr ? on.v[packed.at]
                          : E::widen(gradient[packed.at]) *
                                static_cast<float>(picks.strata.length(packed.number));
    }
    out[i] = on.values.template sent<V>(x);
    if (packed.starts && on.sent != nullptr) on.sent[packed.pick] = how;
  }
}

__global__ void condemn(std::uint32_t* unsound, float* out) {
  if (*unsound != 0) out[0] = std::numeric_limits<float>::quiet_NaN();
  *unsound = 0;
}

template <typename E>
__global__ void clear(typename E::Stored* average, std::size_t count, std::size_t fours,
                      const Verdict* verdict) {
  if (verdict->unsound != 0) return;  // the gradient is still needed
  const auto zero = E::narrow(0.0f);
  for (std::size_t i = thread_index(); i < fours; i += thread_count())
    store_four(average, i, {zero, zero, zero, zero});
  for (std::size_t i = 4 * fours + thread_index(); i < count; i += thread_count())
    average[i] = zero;
}

template <typename E, typename V>
__global__ void receive(const CscDevice on, const CscPicks picks, std::uint32_t count,
                        const typename V::Stored* sum, typename E::Stored* average,
                        Verdict* verdict) {
  const bool write = verdict->unsound == 0;
  bool finite = true;
  for (std::uint64_t i = thread_index(); i < count; i += thread_count()) {
    const float value = on.values.template received<V>(sum[i]);
    finite = finite && is_finite(value);
    const Packed packed(on, picks, static_cast<std::uint32_t>(i));
    if (write && packed.at < on.elements) average[packed.at] = E::narrow(value);
  }
  if (!finite) verdict->skipped = 1;
}

template <typename E>
__global__ void conclude(const CscDevice on, typename E::Stored* gradient, float fill,
                         const Verdict* verdict) {
  if (!verdict->void_step()) return;
  if (on.sent != nullptr) {
    for (std::uint64_t i = thread_index(); i < on.chunks; i += thread_count())
      on.sent[i] = Sent::nothing;
  }
  const bool forget = verdict->unsound != 0;
  for (std::uint64_t i = thread_index(); i < on.elements; i += thread_count()) {
    if (forget && on.v != nullptr) {
      const float u = on.u == nullptr ? 0.0f : on.u[i];
      on.v[i] = taken_out(on.rule, E::widen(gradient[i]), 0.0f, {u, on.v[i]}).v;
      if (on.u != nullptr) on.u[i] = 0;
    }
    gradient[i] = E::narrow(fill);
  }
}

__global__ void settle(const CscDevice on) {
  for (std::uint64_t i = thread_index(); i < on.elements; i += thread_count()) {
    const auto at = static_cast<std::uint32_t>(i);
    const Sent sent = on.sent[at / on.chunk];
    if (sent == Sent::nothing) continue;
    const Kept now = settled(on, sent, at);
    on.v[i] = now.v;
    if (on.u != nullptr) on.u[i] = now.u;
  }
}

template <typename E>
typename E::Stored* elements_of(const TensorView& view) {
  return static_cast<typename E::Stored*>(view.data);
}

}  // namespace

void csc_take_in(const CscDevice& on, const TensorView& gradient, Verdict* verdict, Stream stream) {
  if (on.elements == 0) return;
  const std::uint64_t blocks = on.blocks != 0
                                   ? std::uint64_t{on.chunks} * on.blocks
                                   : (on.elements + std::uint64_t{csc_block} - 1) / csc_block;
  with_element(gradient.dtype, "csc", [&](auto element) {
    using E = decltype(element);
    const auto launch = [&](auto kernel) {
      kernel<<<blocks_for(blocks * warp), block_threads, 0, handle_of(stream)>>>(
          on, elements_of<E>(gradient), blocks, verdict);
    };
    switch (on.rule.accumulate) {
      case Accumulate::none:
        return launch(take_in<E, Accumulate::none>);
      case Accumulate::residual:
        return launch(take_in<E, Accumulate::residual>);
      case Accumulate::momentum:
        return launch(take_in<E, Accumulate::momentum>);
      case Accumulate::nesterov:
        return launch(take_in<E, Accumulate::nesterov>);
      case Accumulate::pool:
        break;  // dgc's alone
    }
  });
  check_launch("csc_take_in");
}

void csc_send(const CscDevice& on, const CscPicks& picks, std::size_t count, Sent how,
              const TensorView& gradient, std::byte* out, Stream stream) {
  if (count == 0) return;
  const auto launch = [&](auto element, auto value) {
    using E = decltype(element);
    using V = decltype(value);
    send<E, V><<<blocks_for(count), block_threads, 0, handle_of(stream)>>>(
        on, picks, static_cast<std::uint32_t>(count), how, elements_of<E>(gradient),
        reinterpret_cast<typename V::Stored*>(out));
  };
  if (on.v == nullptr) {  // from the gradient, which travels as f32
    with_element(gradient.dtype, "csc",
                 [&](auto element) { launch(element, Element<DType::f32>()); });
  } else {
    with_element(on.values.dtype, "csc", [&](auto value) { launch(Element<DType::f32>(), value); });
  }
  check_launch("csc_send");
}

void csc_condemn(const CscDevice& on, float* out, Stream stream) {
  if (on.elements == 0) return;
  condemn<<<1, 1, 0, handle_of(stream)>>>(on.unsound, out);
  check_launch("csc_condemn");
}

void csc_receive(const CscDevice& on, const CscPicks& picks, std::size_t count,
                 const std::byte* sum, const TensorView& average, Verdict* verdict, Stream stream) {
  if (on.elements == 0) return;
  with_element(average.dtype, "csc", [&](auto element) {
    using E = decltype(element);
    auto* const out = elements_of<E>(average);
    const std::size_t fours = whole_fours(on.elements, out);
    clear<E><<<blocks_for(fours == 0 ? on.elements : fours), block_threads, 0, handle_of(stream)>>>(
        out, on.elements, fours, verdict);
    check_launch("csc_receive: zeros");
    with_element(on.values.dtype, "csc", [&](auto value) {
      using V = decltype(value);
      receive<E, V><<<blocks_for(count), block_threads, 0, handle_of(stream)>>>(
          on, picks, static_cast<std::uint32_t>(count),
          reinterpret_cast<const typename V::Stored*>(sum), out, verdict);
    });
    check_launch("csc_receive");
  });
}

void csc_conclude(const CscDevice& on, const TensorView& gradient, float fill,
                  const Verdict* verdict, Stream stream) {
  if (on.elements == 0) return;
  with_element(gradient.dtype, "csc", [&](auto element) {
    using E = decltype(element);
    conclude<E><<<blocks_for(on.elements), block_threads, 0, handle_of(stream)>>>(
        on, elements_of<E>(gradient), fill, verdict);
  });
  check_launch("csc_conclude");
}

void csc_settle(const CscDevice& on, Stream stream) {
  if (on.sent == nullptr || on.elements == 0) return;
  settle<<<blocks_for(on.elements), block_threads, 0, handle_of(stream)>>>(on);
  check_launch("csc_settle");
}

}  // namespace thinwire
