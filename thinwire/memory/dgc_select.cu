// dgc_select.cu: after the pass. In most steps the first block steers the thresholds, and that is
// all. Where more than `most` elements passed, all blocks first find the magnitude of the smallest
// that may stay, bit by bit through histograms, and put the others back.
// SPDX-License-Identifier: Apache-2.0
#include <cooperative_groups.h>

#include <cub/block/block_scan.cuh>
#include <limits>
#include <map>
#include <mutex>

#include "thinwire/core/element.h"
#include "thinwire/core/launch.cuh"
#include "thinwire/core/tile.h"
#include "thinwire/kernels/limit.h"
#include "thinwire/memory/dgc_cuda.h"

namespace thinwire {
namespace {

void check_cuda(cudaError_t error, const char* what) {
  if (error != cudaSuccess) fail("cuda, ", what, ": ", cudaGetErrorString(error));
}

constexpr int threads = 1024;
constexpr int warps = threads / 32;
constexpr int bins = 2048;
// A magnitude has 31 bits. It is found in three parts, from the highest.
constexpr int rounds = 3;
__device__ constexpr int shift_of(int round) { return round == 0 ? 20 : round == 1 ? 10 : 0; }
static_assert(dgc_histogram_entries == rounds * bins);

using Scan = cub::BlockScan<std::uint32_t, threads>;

struct Shared {
  std::uint32_t histogram[bins];
  typename Scan::TempStorage scan;
  std::uint32_t bin, above;
};

__device__ std::uint32_t magnitude_of(float value) { return __float_as_uint(value) & 0x7fffffffu; }

// Whether an element of an unlisted tile passed; its v is still in the memory, or in the gradient.
template <typename E>
__device__ bool passed(const DgcDevice& on, const typename E::Stored* gradient,
                       std::uint32_t threshold, std::uint32_t at, float& value) {
  const float d = *on.scale * E::widen(gradient[at]);
  value = on.v == nullptr ? d : on.v[at];
  return within_limit(d) && magnitude_of(value) >= threshold;
}

// Calls see(magnitude) for every element of the segment that passed, shared out over all warps.
template <typename E, typename See>
__device__ void for_each_passed(const DgcDevice& on, const DgcSegment& segment,
                                const typename E::Stored* gradient, std::uint32_t threshold,
                                const See& see) {
  const std::uint32_t lane = threadIdx.x % 32;
  const std::uint32_t warp = blockIdx.x * warps + threadIdx.x / 32, step = gridDim.x * warps;
  for (std::uint32_t i = warp; i < segment.tiles; i += step) {
    const std::uint32_t t = segment.first_tile + i;
    const TileRange range = on.table[t];
    if (range.first != TileRange::unlisted) {
      for (std::uint32_t k = lane; k < range.count; k += 32)
        see(t, magnitude_of(on.pool.value[range.first + k]));
    } else {
      const DgcTile tile = on.tiles[t];
      float value = 0;
      for (std::uint32_t k = lane; k < tile.count; k += 32)
        if (passed<E>(on, gradient, threshold, tile.first + k, value)) see(t, magnitude_of(value));
    }
  }
}

// The bin in which the `rank`-th largest lies (from 1), and how many are in higher bins.
__device__ void find_bin(const std::uint32_t* histogram, std::uint32_t rank, Shared& shared) {
  // Thread 0 has the highest bins, so that a scan counts from the largest down.
  constexpr int each = bins / threads;
  const int high = bins - 1 - each * static_cast<int>(threadIdx.x);
  std::uint32_t sum = 0, before = 0;
  for (int i = 0; i < each; ++i) sum += histogram[high - i];
  Scan(shared.scan).ExclusiveSum(sum, before);
  for (int i = 0; i < each; ++i) {
    const std::uint32_t here = histogram[high - i];
    if (before < rank && rank <= before + here) {
      shared.bin = static_cast<std::uint32_t>(high - i);
      shared.above = before;
    }
    before += here;
  }
  __syncthreads();
}

// Which elements stay: those above `least`, and of those at it the first of each tile.
struct Keep {
  std::uint32_t least = 0;
  bool all_ties = true;

  // In one warp: whether this lane's element stays; `ties` counts those seen before in the tile.
  __device__ bool operator()(const DgcDevice& on, std::uint32_t tile, bool valid,
                             std::uint32_t magnitude, std::uint32_t& ties) const {
    const bool tie = valid && magnitude == least;
    const std::uint32_t equal = __ballot_sync(~0u, tie);
    const std::uint32_t rank = ties + __popc(equal & ((1u << threadIdx.x % 32) - 1));
    ties += __popc(equal);
    return valid && (magnitude > least || (tie && (all_ties || rank < on.ties[tile])));
  }
};

__device__ void put_back(const DgcDevice& on, std::uint32_t at, float value, float velocity) {
  if (on.v != nullptr) on.v[at] = value;
  if (on.u != nullptr) on.u[at] = velocity;
}

// One warp: closes the gaps in the tile's part of the pool.
__device__ void prune_listed(const DgcDevice& on, std::uint32_t t, const Keep& keep) {
  const std::uint32_t lane = threadIdx.x % 32;
  const TileRange range = on.table[t];
  std::uint32_t kept = 0, ties = 0;
  for (std::uint32_t k = 0; k < range.count; k += 32) {
    const bool valid = k + lane < range.count;
    const std::uint32_t from = range.first + (valid ? k + lane : 0);
    const std::uint32_t index = on.pool.index[from];
    const float value = on.pool.value[from];
    const float velocity = on.u == nullptr ? 0.0f : on.pool.velocity[from];
    __syncwarp();
    const bool stays = keep(on, t, valid, magnitude_of(value), ties);
    const std::uint32_t staying = __ballot_sync(~0u, stays);
    if (stays) {
      const std::uint32_t to = range.first + kept + __popc(staying & ((1u << lane) - 1));
      on.pool.index[to] = index;
      on.pool.value[to] = value;
      if (on.u != nullptr) on.pool.velocity[to] = velocity;
    } else if (valid) {
      put_back(on, index, value, velocity);
    }
    kept += __popc(staying);
    __syncwarp();
  }
  if (lane == 0) on.table[t].count = kept;
}

// One warp: takes what stays out of the memory, into the reserve of the pool.
template <typename E>
__device__ void take_unlisted(const DgcDevice& on, std::uint32_t t,
                              const typename E::Stored* gradient, std::uint32_t threshold,
                              const Keep& keep) {
  const std::uint32_t lane = threadIdx.x % 32;
  const DgcTile tile = on.tiles[t];
  std::uint32_t first = 0, kept = 0;
  for (const bool counting : {true, false}) {
    std::uint32_t ties = 0;
    if (!counting) {
      if (lane == 0) first = on.capacity + atomicAdd(&on.counters->reserved, kept);
      first = __shfl_sync(~0u, first, 0);
      kept = 0;
    }
    for (std::uint32_t k = 0; k < tile.count; k += 32) {
      float value = 0;
      const std::uint32_t at = tile.first + k + lane;
      const bool valid = k + lane < tile.count && passed<E>(on, gradient, threshold, at, value);
      const bool stays = keep(on, t, valid, magnitude_of(value), ties);
      const std::uint32_t staying = __ballot_sync(~0u, stays);
      if (stays && !counting) {
        const std::uint32_t to = first + kept + __popc(staying & ((1u << lane) - 1));
        on.pool.index[to] = at;
        on.pool.value[to] = value;
        if (on.v != nullptr) on.v[at] = 0;
        if (on.u != nullptr) {
          const float velocity = on.u[at];
          on.pool.velocity[to] = velocity;
          if (on.mask) on.u[at] = 0;
        }
      }
      kept += __popc(staying);
    }
  }
  if (lane == 0) on.table[t] = {first, kept};
}

// The first block: how many of its ties each tile keeps, so that the lowest indices stay.
__device__ void share_ties(const DgcDevice& on, const DgcSegment& segment, std::uint32_t wanted,
                           Shared& shared) {
  std::uint32_t given = 0;
  for (std::uint32_t base = 0; base < segment.tiles; base += threads) {
    const std::uint32_t i = base + threadIdx.x;
    std::uint32_t* ties = i < segment.tiles ? on.ties + segment.first_tile + i : nullptr;
    const std::uint32_t mine = ties == nullptr ? 0 : *ties;
    std::uint32_t before = 0, all = 0;
    Scan(shared.scan).ExclusiveSum(mine, before, all);
    const std::uint32_t left = wanted > given + before ? wanted - given - before : 0;
    if (ties != nullptr) *ties = min(mine, left);
    given += all;
    __syncthreads();
  }
}

// The threshold of the pass, as a magnitude.
__device__ std::uint32_t threshold_of(const DgcDevice& on, const DgcSegment& segment) {
  const float smallest = std::numeric_limits<float>::denorm_min();
  if (on.exact) return magnitude_of(smallest);
  return magnitude_of(fmaxf(static_cast<float>(segment.threshold.value), smallest));
}

// All warps: the tiles' ranges in the pool become those of what stays.
template <typename E>
__device__ void settle_tiles(const DgcDevice& on, const DgcSegment& segment,
                             const typename E::Stored* gradient, const Keep& keep) {
  const std::uint32_t threshold = threshold_of(on, segment);
  const std::uint32_t warp = blockIdx.x * warps + threadIdx.x / 32;
  for (std::uint32_t i = warp; i < segment.tiles; i += gridDim.x * warps) {
    const std::uint32_t t = segment.first_tile + i;
    if (on.table[t].first != TileRange::unlisted) {
      prune_listed(on, t, keep);
    } else {
      take_unlisted<E>(on, t, gradient, threshold, keep);
    }
  }
}

// All blocks: exactly the `wanted` largest of the segment stay.
template <typename E>
__device__ std::uint32_t select_exactly(const DgcDevice& on, const DgcSegment& segment,
                                        const typename E::Stored* gradient, Shared& shared) {
  auto grid = cooperative_groups::this_grid();
  const std::uint32_t threshold = threshold_of(on, segment);
  std::uint32_t prefix = 0, rank = segment.wanted;
  for (int round = 0; round < rounds; ++round) {
    std::uint32_t* histogram = on.histogram + round * bins;
    for (int i = static_cast<int>(threadIdx.x); i < bins; i += threads) shared.histogram[i] = 0;
    __syncthreads();
    const int shift = shift_of(round);
    const int above = round == 0 ? 31 : shift_of(round - 1);
    for_each_passed<E>(on, segment, gradient, threshold, [&](std::uint32_t, std::uint32_t m) {
      if (m >> above == prefix)
        atomicAdd(&shared.histogram[(m >> shift) & (round == 0 ? 2047 : 1023)], 1);
    });
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < bins; i += threads)
      if (shared.histogram[i] != 0) atomicAdd(&histogram[i], shared.histogram[i]);
    grid.sync();
    find_bin(histogram, rank, shared);
    prefix = prefix << (above - shift) | shared.bin;
    rank -= shared.above;
    __syncthreads();
  }
  // `rank` of those at exactly this magnitude stay.
  const std::uint32_t equal = on.histogram[(rounds - 1) * bins + (prefix & 1023)];
  const Keep keep{prefix, equal == rank};
  if (!keep.all_ties) {
    for (std::uint32_t i = blockIdx.x * threads + threadIdx.x; i < segment.tiles;
         i += gridDim.x * threads)
      on.ties[segment.first_tile + i] = 0;
    grid.sync();
    for_each_passed<E>(on, segment, gradient, threshold, [&](std::uint32_t tile, std::uint32_t m) {
      if (m == prefix) atomicAdd(&on.ties[tile], 1);
    });
    grid.sync();
    if (blockIdx.x == 0) share_ties(on, segment, rank, shared);
    grid.sync();
  }
  settle_tiles<E>(on, segment, gradient, keep);
  grid.sync();
  if (blockIdx.x == 0)
    for (int i = static_cast<int>(threadIdx.x); i < rounds * bins; i += threads)
      on.histogram[i] = 0;
  grid.sync();  // before another segment counts
  return prefix;
}

template <typename E>
__global__ void __launch_bounds__(threads)
    select(const DgcDevice on, const typename E::Stored* gradient) {
  __shared__ Shared shared;
  // All blocks go the same way, because they read what the pass has left.
  const bool full = on.counters->pooled > on.capacity;
  for (std::uint32_t s = 0; s < on.segment_count; ++s) {
    const DgcSegment segment = on.segments[s];
    if (segment.passed <= segment.most) {
      if (full) settle_tiles<E>(on, segment, gradient, Keep{threshold_of(on, segment), true});
      continue;
    }
    const std::uint32_t least = select_exactly<E>(on, segment, gradient, shared);
    // Thread 0 of block 0 alone reads it after this.
    if (blockIdx.x == 0 && threadIdx.x == 0)
      on.segments[s].threshold.value = static_cast<double>(__uint_as_float(least));
  }
  if (blockIdx.x != 0) return;
  for (std::uint32_t s = threadIdx.x; s < on.segment_count; s += threads) {
    DgcSegment& segment = on.segments[s];
    if (segment.passed <= segment.most && !on.exact)
      segment.threshold.steer(segment.passed, segment.wanted);
  }
}

// Blocks that run at once: a kernel whose blocks wait for each other may not have more.
template <typename Kernel>
int blocks_at_once(Kernel kernel) {
  static std::mutex mutex;
  static std::map<int, int> known;  // by device
  const std::lock_guard lock(mutex);
  int device = 0;
  check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  int& blocks = known[device];
  if (blocks == 0) {
    int each = 0, processors = 0;
    check_cuda(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, kernel, threads, 0),
               "occupancy");
    check_cuda(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device),
               "processors");
    blocks = each > 0 ? processors : 0;
  }
  return blocks;
}

}  // namespace

void dgc_select(const DgcDevice& on, TensorView gradient, Stream stream) {
  if (on.tile_count == 0) return;
  with_element(gradient.dtype, "dgc", [&](auto element) {
    using E = decltype(element);
    const auto* data = static_cast<const typename E::Stored*>(gradient.data);
    DgcDevice argument = on;
    void* arguments[] = {&argument, static_cast<void*>(&data)};
    // A block more than there are tiles for would find nothing to do.
    const auto wanted = static_cast<int>((on.tile_count + warps - 1) / warps);
    const int blocks = std::min(blocks_at_once(select<E>), wanted);
    check_cuda(cudaLaunchCooperativeKernel(reinterpret_cast<const void*>(&select<E>), dim3(blocks),
                                           dim3(threads), arguments, 0, handle_of(stream)),
               "dgc_select");
  });
}

}  // namespace thinwire
