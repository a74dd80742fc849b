// csc_pick.cu: norms of chunks, and the largest of them. Buckets have thousands of chunks, so one
// thread block chooses: it finds the smallest chosen norm by its bits, eight at a time, and then
// lists what is above, and of its equals the first ones.
// SPDX-License-Identifier: Apache-2.0
#include <bit>
#include <limits>

#include "thinwire/compress/csc_pick_cuda.h"
#include "thinwire/core/element.h"
#include "thinwire/core/launch.cuh"

namespace thinwire {
namespace {

constexpr unsigned warp = 32;
constexpr unsigned threads = 1024;  // of the block that chooses
constexpr unsigned bins = 256;

// A warp per chunk: the sum over its blocks, in the order of kernels/csc.h.
template <typename V>
__global__ void write_norms(const CscDevice on, const SummedRule as, bool masked,
                            typename V::Stored* out) {
  const unsigned lane = threadIdx.x % warp;
  for (std::uint64_t chunk = thread_index() / warp; chunk < on.chunks;
       chunk += thread_count() / warp) {
    const double* const norms = on.block_norms + chunk * on.blocks;
    double sum = 0;
    for (std::uint32_t b = lane; b < on.blocks; b += warp) sum += norms[b];
    for (unsigned half = warp / 2; half > 0; half /= 2) sum += __shfl_down_sync(~0u, sum, half);
    if (lane != 0) continue;
    const std::uint64_t first = chunk * on.chunk;
    const std::uint64_t size = min(std::uint64_t{on.chunk}, on.elements - first);
    float mean = static_cast<float>(sum / static_cast<double>(size));
    if (masked && on.sent[chunk] != Sent::nothing) mean = 0;
    if (!(sum <= std::numeric_limits<double>::max()))
      mean = std::numeric_limits<float>::quiet_NaN();
    out[chunk] = as.template sent<V>(mean);
  }
}

template <typename V>
__global__ void read_norms(const SummedRule as, const typename V::Stored* sum, std::uint32_t chunks,
                           float* norms, Verdict* verdict) {
  for (std::uint64_t i = thread_index(); i < chunks; i += thread_count()) {
    norms[i] = as.template received<V>(sum[i]);
    if (!is_finite(norms[i])) verdict->skipped = 1;
  }
}

__global__ void restore_norms(float* norms, const float* before, std::uint32_t chunks,
                              const Verdict* verdict) {
  if (!verdict->void_step()) return;
  for (std::uint64_t i = thread_index(); i < chunks; i += thread_count()) norms[i] = before[i];
}

__device__ std::uint32_t magnitude(float x) {
  return std::bit_cast<std::uint32_t>(x) & 0x7fffffffu;
}

// The first warp finds the bin that holds the `rest`-th largest number, and its place in the bin.
__device__ void find_bin(const std::uint32_t* histogram, std::uint32_t& bin, std::uint32_t& rest) {
  constexpr unsigned each = bins / warp;
  const unsigned lane = threadIdx.x;
  const std::uint32_t place = rest;
  __syncwarp();  // one lane writes it
  // Lane 0 has the highest bins.
  const unsigned top = bins - 1 - lane * each;
  std::uint32_t sum = 0;
  for (unsigned k = 0; k < each; ++k) sum += histogram[top - k];
  std::uint32_t until = sum;
  for (unsigned step = 1; step < warp; step *= 2) {
    const std::uint32_t other = __shfl_up_sync(~0u, until, step);
    if (lane >= step) until += other;
  }
  std::uint32_t before = until - sum;
  if (before < place && place <= until) {
    unsigned k = 0;
    for (; before + histogram[top - k] < place; ++k) before += histogram[top - k];
    bin = top - k;
    rest = place - before;
  }
}

// The number of threads before this one for which `flag` is set; `all` is the number in the block.
__device__ std::uint32_t rank_among(bool flag, std::uint32_t* counts, std::uint32_t& all) {
  const unsigned lane = threadIdx.x % warp, number = threadIdx.x / warp;
  const std::uint32_t bits = __ballot_sync(~0u, flag);
  __syncthreads();  // counts may still be in use
  if (lane == 0) counts[number] = __popc(bits);
  __syncthreads();
  std::uint32_t before = 0;
  all = 0;
  for (unsigned w = 0; w < threads / warp; ++w) {
    if (w < number) before += counts[w];
    all += counts[w];
  }
  return before + __popc(bits & ((1u << lane) - 1));
}

__global__ void __launch_bounds__(threads)
    pick(const float* norms, std::uint32_t chunks, std::uint32_t wanted, std::uint32_t* picks) {
  __shared__ std::uint32_t histogram[bins], counts[threads / warp], bin, rest;
  std::uint32_t known = 0, mask = 0;  // the high bits of the smallest chosen norm
  if (threadIdx.x == 0) rest = wanted;
  for (int shift = 24; shift >= 0; shift -= 8) {
    if (threadIdx.x < bins) histogram[threadIdx.x] = 0;
    __syncthreads();
    for (std::uint64_t i = threadIdx.x; i < chunks; i += threads) {
      const std::uint32_t m = magnitude(norms[i]);
      if ((m & mask) == known) atomicAdd(&histogram[(m >> shift) % bins], 1u);
    }
    __syncthreads();
    if (threadIdx.x < warp) find_bin(histogram, bin, rest);
    __syncthreads();
    known |= bin << shift;
    mask |= (bins - 1) << shift;
  }
  const std::uint32_t equals = rest;  // so many of those with this norm
  std::uint32_t listed = 0, seen = 0;
  for (std::uint64_t start = 0; start < chunks; start += threads) {
    const std::uint64_t i = start + threadIdx.x;
    const std::uint32_t m = i < chunks ? magnitude(norms[i]) : 0;
    const bool tie = i < chunks && m == known;
    std::uint32_t ties = 0, chosen = 0;
    const std::uint32_t earlier = seen + rank_among(tie, counts, ties);
    const bool choose = i < chunks && (m > known || (tie && earlier < equals));
    const std::uint32_t place = listed + rank_among(choose, counts, chosen);
    if (choose) picks[place] = static_cast<std::uint32_t>(i);
    seen += ties;
    listed += chosen;
  }
}

}  // namespace

void csc_write_norms(const CscDevice& on, const SummedRule& as, bool masked, std::byte* out,
                     Stream stream) {
  if (on.chunks == 0) return;
  with_element(as.dtype, "csc", [&](auto value) {
    using V = decltype(value);
    write_norms<V>
        <<<blocks_for(std::size_t{on.chunks} * warp), block_threads, 0, handle_of(stream)>>>(
            on, as, masked, reinterpret_cast<typename V::Stored*>(out));
  });
  check_launch("csc_write_norms");
}

void csc_read_norms(const SummedRule& as, const std::byte* sum, std::uint32_t chunks, float* norms,
                    Verdict* verdict, Stream stream) {
  if (chunks == 0) return;
  with_element(as.dtype, "csc", [&](auto value) {
    using V = decltype(value);
    read_norms<V><<<blocks_for(chunks), block_threads, 0, handle_of(stream)>>>(
        as, reinterpret_cast<const typename V::Stored*>(sum), chunks, norms, verdict);
  });
  check_launch("csc_read_norms");
}

void csc_pick(const float* norms, std::uint32_t chunks, std::uint32_t wanted, std::uint32_t* picks,
              Stream stream) {
  if (chunks == 0) return;
  pick<<<1, threads, 0, handle_of(stream)>>>(norms, chunks, wanted, picks);
  check_launch("csc_pick");
}

void csc_restore_norms(float* norms, const float* before, std::uint32_t chunks,
                       const Verdict* verdict, Stream stream) {
  if (chunks == 0) return;
  restore_norms<<<blocks_for(chunks), block_threads, 0, handle_of(stream)>>>(norms, before, chunks,
                                                                             verdict);
  check_launch("csc_restore_norms");
}

}  // namespace thinwire
