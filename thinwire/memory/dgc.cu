// dgc.cu: the pass of Deep Gradient Compression over a bucket in device memory, and the way back
// from a void step. A block handles a tile of 4096 elements, 16 per thread.
// SPDX-License-Identifier: Apache-2.0
#include <bit>
#include <limits>

#include "thinwire/core/element.h"
#include "thinwire/core/launch.cuh"
#include "thinwire/core/tile.h"
#include "thinwire/kernels/clip.h"
#include "thinwire/kernels/limit.h"
#include "thinwire/memory/dgc_cuda.h"

namespace thinwire {
namespace {

constexpr int threads = 256;
constexpr int fours = tile_elements / (4 * threads);  // groups of four elements per thread
constexpr int words = tile_elements / 32;             // of a bitmap of the tile

__device__ float smallest_positive() { return std::numeric_limits<float>::denorm_min(); }

__device__ float pass_threshold(const DgcDevice& on, const DgcSegment& segment) {
  if (on.exact) return smallest_positive();
  return fmaxf(static_cast<float>(segment.threshold.value), smallest_positive());
}

// Element 4 * (f * threads + thread) + k of the tile is element 4 * f + k of the thread.
struct Values {
  float at[4 * fours];
};

template <typename E>
__device__ void load(const typename E::Stored* from, int count, bool vectors, Values& out) {
#pragma unroll
  for (int f = 0; f < fours; ++f) {
    const int at = 4 * (f * threads + static_cast<int>(threadIdx.x));
    if (vectors && at + 4 <= count) {
      const auto four = load_four(from, static_cast<std::size_t>(at / 4));
#pragma unroll
      for (int k = 0; k < 4; ++k) out.at[4 * f + k] = E::widen(four.at[k]);
    } else {
#pragma unroll
      for (int k = 0; k < 4; ++k)
        out.at[4 * f + k] = at + k < count ? E::widen(from[at + k]) : 0.0f;
    }
  }
}

__device__ void store(float* to, int count, bool vectors, const Values& values) {
#pragma unroll
  for (int f = 0; f < fours; ++f) {
    const int at = 4 * (f * threads + static_cast<int>(threadIdx.x));
    if (vectors && at + 4 <= count) {
      Four<float> four;
#pragma unroll
      for (int k = 0; k < 4; ++k) four.at[k] = values.at[4 * f + k];
      store_four(to, static_cast<std::size_t>(at / 4), four);
    } else {
#pragma unroll
      for (int k = 0; k < 4; ++k)
        if (at + k < count) to[at + k] = values.at[4 * f + k];
    }
  }
}

// Where a tile's survivors go: a place in the pool for each set bit of the bitmap.
struct Places {
  std::uint32_t bits[words];
  std::uint32_t before[words];  // set bits before the word
  std::uint32_t first;          // in the pool
  bool listed;
};

// Called by the first warp: counts the bits, and takes room in the pool.
__device__ void take_room(const DgcDevice& on, const DgcTile& tile, Places& places) {
  const unsigned lane = threadIdx.x;
  constexpr int each = words / 32;
  std::uint32_t sum = 0;
  for (int k = 0; k < each; ++k) sum += __popc(places.bits[each * lane + k]);
  std::uint32_t until = sum;
  for (unsigned step = 1; step < 32; step *= 2) {
    const std::uint32_t other = __shfl_up_sync(~0u, until, step);
    if (lane >= step) until += other;
  }
  std::uint32_t before = until - sum;
  for (int k = 0; k < each; ++k) {
    places.before[each * lane + k] = before;
    before += __popc(places.bits[each * lane + k]);
  }
  if (lane != 31) return;
  std::uint32_t first = 0;
  if (until > 0) {
    atomicAdd(&on.segments[tile.segment].passed, until);
    first = atomicAdd(&on.counters->pooled, until);
  }
  // Without a sum that could wrap: `first` may be anything once the pool is full.
  const bool listed = until == 0 || (first < on.capacity && until <= on.capacity - first);
  places.first = first;
  places.listed = listed;
  on.table[blockIdx.x] = {listed ? first : TileRange::unlisted, until};
}

template <typename E, Accumulate accumulate>
__global__ void __launch_bounds__(threads, 4)
    take_in(const DgcDevice on, const typename E::Stored* gradient, bool vectors,
            Verdict* verdict) {
  __shared__ Places places;
  constexpr bool has_u = has_momentum(accumulate), has_v = has_residual(accumulate);
  const DgcTile tile = on.tiles[blockIdx.x];
  const int count = tile.count;
  vectors = vectors && tile.first % 4 == 0;
  for (int i = static_cast<int>(threadIdx.x); i < words; i += threads) places.bits[i] = 0;

  Values g, u, v;
  load<E>(gradient + tile.first, count, vectors, g);
  if (has_u) load<Element<DType::f32>>(on.u + tile.first, count, tile.first % 4 == 0, u);
  if (has_v) load<Element<DType::f32>>(on.v + tile.first, count, tile.first % 4 == 0, v);
  const float threshold = pass_threshold(on, on.segments[tile.segment]);
  const float scale = *on.scale;
  const PoolFactors factors = pool_factors(on.momentum);  // twice a division: not for each element

  bool bad = false;
  std::uint32_t survives = 0;
#pragma unroll
  for (int i = 0; i < 4 * fours; ++i) {
    const float d = scale * g.at[i];
    // Loads put zeros behind the end, which never survive.
    if (!within_limit(d)) {
      bad = true;
      continue;
    }
    const Kept old{has_u ? u.at[i] : 0, has_v ? v.at[i] : 0};
    const Kept now = accumulate == Accumulate::pool
                         ? pooled(factors, d, old)
                         : accumulated({accumulate, on.momentum}, d, old);
    if (has_u) u.at[i] = now.u;
    v.at[i] = now.v;
    if (fabsf(now.v) >= threshold) survives |= 1u << i;
  }
  __syncthreads();
#pragma unroll
  for (int f = 0; f < fours; ++f) {
    const std::uint32_t nibble = (survives >> (4 * f)) & 15u;
    const unsigned at = 4 * (f * threads + threadIdx.x);
    if (nibble != 0) atomicOr(&places.bits[at / 32], nibble << (at % 32));
  }
  if (__syncthreads_or(bad) && threadIdx.x == 0) {
    on.counters->unsound = 1;
    verdict->unsound = 1;
  }
  if (threadIdx.x < 32) take_room(on, tile, places);
  __syncthreads();

  if (places.listed && survives != 0) {
#pragma unroll
    for (int i = 0; i < 4 * fours; ++i) {
      if ((survives >> i & 1u) == 0) continue;
      const unsigned at = 4 * ((i / 4) * threads + threadIdx.x) + i % 4;
      const std::uint32_t place = places.first + places.before[at / 32] +
                                  __popc(places.bits[at / 32] & ((1u << at % 32) - 1));
      on.pool.index[place] = tile.first + at;
      on.pool.value[place] = v.at[i];
      if (has_u) {
        on.pool.velocity[place] = u.at[i];
        if (on.mask) u.at[i] = 0;
      }
      v.at[i] = 0;
    }
  }
  if (has_u) store(on.u + tile.first, count, tile.first % 4 == 0, u);
  if (has_v) store(on.v + tile.first, count, tile.first % 4 == 0, v);
}

// Survivors return; where this rank's gradient was beyond the limit, the gradient leaves again, as
// take_out() in limit.h does it.
template <typename E>
__device__ void take_back(const DgcDevice& on, std::uint32_t number, typename E::Stored* gradient,
                          float fill, bool forget) {
  const DgcTile tile = on.tiles[number];
  const std::uint32_t from = on.offset[number], to = from + on.table[number].count;
  for (std::uint32_t i = from + threadIdx.x; i < to; i += threads) {
    const std::uint32_t at = on.ordered.index[i];
    if (on.v != nullptr) on.v[at] = on.ordered.value[i];
    if (on.u != nullptr) on.u[at] = on.ordered.velocity[i];
  }
  __syncthreads();
  const float scale = *on.scale;
  for (unsigned i = threadIdx.x; i < tile.count; i += threads) {
    const std::uint32_t at = tile.first + i;
    if (forget && on.v != nullptr) {
      const float d = scale * E::widen(gradient[at]);
      const Kept kept = taken_out({on.accumulate, on.momentum}, d, 0.0f,
                                  {on.u == nullptr ? 0.0f : on.u[at], on.v[at]});
      on.v[at] = kept.v;
      if (on.u != nullptr) on.u[at] = kept.u;
    }
    gradient[at] = E::narrow(fill);
  }
  if (forget && threadIdx.x == 0) on.segments[tile.segment].threshold.value = 0;
}

// Takes a void step back. In others there is nothing to do, so few blocks look.
template <typename E>
__global__ void __launch_bounds__(threads)
    conclude(const DgcDevice on, typename E::Stored* gradient, float fill, const Verdict* verdict) {
  if (!verdict->void_step()) return;
  for (std::uint32_t tile = blockIdx.x; tile < on.tile_count; tile += gridDim.x)
    take_back<E>(on, tile, gradient, fill, verdict->unsound != 0);
}

__global__ void clip(float* scale, const double* squared_norm, double limit) {
  *scale = clip_factor(*squared_norm, limit);
}

// The frame's kernels (compress/sparse_encode.cu) do the same in theirs: order the survivors, put
// them back where nothing is sent, and reset the counters.
__global__ void __launch_bounds__(threads) scatter(const DgcDevice on, float* out) {
  __shared__ std::uint32_t place;
  const TileRange range = on.table[blockIdx.x];
  if (threadIdx.x == 0) {
    place = atomicAdd(&on.counters->placed, range.count);
    on.offset[blockIdx.x] = place;
  }
  __syncthreads();
  const bool unsound = on.counters->unsound != 0;
  for (std::uint32_t k = threadIdx.x; k < range.count; k += threads) {
    const std::uint32_t from = range.first + k, to = place + k;
    const std::uint32_t index = on.pool.index[from];
    const float value = on.pool.value[from];
    const float velocity = on.u == nullptr ? 0.0f : on.pool.velocity[from];
    on.ordered.index[to] = index;
    on.ordered.value[to] = value;
    if (on.u != nullptr) on.ordered.velocity[to] = velocity;
    if (!unsound) {
      out[index] = value;
    } else {
      if (on.v != nullptr) on.v[index] = value;
      if (on.u != nullptr) on.u[index] = velocity;
    }
  }
  if (unsound && blockIdx.x == 0 && threadIdx.x == 0)
    out[0] = std::numeric_limits<float>::quiet_NaN();
}

__global__ void reset(const DgcDevice on) {
  if (threadIdx.x == 0) *on.counters = {};
  for (std::uint32_t s = threadIdx.x; s < on.segment_count; s += blockDim.x)
    on.segments[s].passed = 0;
}

template <typename E>
__global__ void average_dense(const float* sum, float share, typename E::Stored* average,
                              std::size_t count, Verdict* verdict) {
  const bool write = verdict->unsound == 0;  // else the gradient is still needed
  for (std::size_t i = thread_index(); i < count; i += thread_count()) {
    const typename E::Stored value = E::narrow(sum[i] * share);
    if (!is_finite(E::widen(value))) verdict->skipped = 1;
    if (write) average[i] = value;
  }
}

bool aligned(const void* data, std::size_t bytes) {
  return reinterpret_cast<std::uintptr_t>(data) % bytes == 0;
}

}  // namespace

void dgc_take_in(const DgcDevice& on, TensorView gradient, Verdict* verdict, Stream stream) {
  if (on.tile_count == 0) return;
  with_element(gradient.dtype, "dgc", [&](auto element) {
    using E = decltype(element);
    using Type = typename E::Stored;
    const auto* data = static_cast<const Type*>(gradient.data);
    const bool vectors = aligned(data, 4 * sizeof(Type));
    const auto launch = [&](auto kernel) {
      kernel<<<on.tile_count, threads, 0, handle_of(stream)>>>(on, data, vectors, verdict);
    };
    switch (on.accumulate) {
      case Accumulate::none:
        return launch(take_in<E, Accumulate::none>);
      case Accumulate::residual:
        return launch(take_in<E, Accumulate::residual>);
      case Accumulate::momentum:
        return launch(take_in<E, Accumulate::momentum>);
      case Accumulate::nesterov:
        return launch(take_in<E, Accumulate::nesterov>);
      case Accumulate::pool:
        return launch(take_in<E, Accumulate::pool>);
    }
  });
  check_launch("dgc_take_in");
}

void dgc_clip(const DgcDevice& on, const double* squared_norm, double limit, Stream stream) {
  clip<<<1, 1, 0, handle_of(stream)>>>(on.scale, squared_norm, limit);
  check_launch("dgc_clip");
}

void dgc_scatter(const DgcDevice& on, float* out, Stream stream) {
  zero_bytes(out, std::size_t{on.elements} * sizeof(float), stream);
  scatter<<<on.tile_count, threads, 0, handle_of(stream)>>>(on, out);
  check_launch("dgc_scatter");
  reset<<<1, threads, 0, handle_of(stream)>>>(on);
  check_launch("dgc_scatter, reset");
}

void dgc_average(const float* sum, float share, TensorView average, Verdict* verdict,
                 Stream stream) {
  with_element(average.dtype, "dgc", [&](auto element) {
    using E = decltype(element);
    average_dense<E><<<blocks_for(average.count), block_threads, 0, handle_of(stream)>>>(
        sum, share, static_cast<typename E::Stored*>(average.data), average.count, verdict);
  });
  check_launch("dgc_average");
}

void dgc_conclude(const DgcDevice& on, TensorView gradient, float fill, const Verdict* verdict,
                  Stream stream) {
  if (on.tile_count == 0) return;
  constexpr std::uint32_t most = 264;
  with_element(gradient.dtype, "dgc", [&](auto element) {
    using E = decltype(element);
    conclude<E><<<std::min(on.tile_count, most), threads, 0, handle_of(stream)>>>(
        on, static_cast<typename E::Stored*>(gradient.data), fill, verdict);
  });
  check_launch("dgc_conclude");
}

}  // namespace thinwire
