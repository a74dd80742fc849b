// norm.cu: the squared norm in its fixed order: a warp per block of elements, then pairs of blocks.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/core/element.h"
#include "thinwire/core/launch.cuh"
#include "thinwire/kernels/norm.h"

namespace thinwire {
namespace {

// Thread i of a warp has sum i. The square is exact, so the fused operation rounds as the plain two
// do.
template <typename E>
__global__ void squares_kernel(const typename E::Stored* x, std::size_t count, double* sums) {
  const std::size_t warp = thread_index() / norm_sums, warps = thread_count() / norm_sums;
  const unsigned lane = threadIdx.x % norm_sums;
  for (std::size_t block = warp; block * norm_block < count; block += warps) {
    const auto* from = x + block * norm_block + lane;
    const std::size_t size = min(norm_block, count - block * norm_block);
    double sum = 0;
    if (size == norm_block) {
#pragma unroll 16
      for (unsigned i = 0; i < norm_block; i += norm_sums) {
        const double value = E::widen(from[i]);
        sum = fma(value, value, sum);
      }
    } else {
      for (unsigned i = 0; i + lane < size; i += norm_sums) {
        const double value = E::widen(from[i]);
        sum = fma(value, value, sum);
      }
    }
    for (unsigned half = norm_sums / 2; half > 0; half /= 2)
      sum += __shfl_down_sync(0xffffffffu, sum, half);
    if (lane == 0) sums[block] = sum;
  }
}

// Chunks of a power of two are whole subtrees of the pairs, so each is added by itself.
__global__ void pairs_kernel(const double* in, std::size_t count, double* out) {
  __shared__ double sums[norm_chunk];
  const std::size_t start = std::size_t{blockIdx.x} * norm_chunk;
  auto size = static_cast<unsigned>(min(norm_chunk, count - start));
  for (unsigned i = threadIdx.x; i < size; i += blockDim.x) sums[i] = in[start + i];
  __syncthreads();
  for (; size > 1; size = (size + 1) / 2) {
    const unsigned i = 2 * threadIdx.x;
    double sum = 0;
    if (i < size) sum = i + 1 < size ? sums[i] + sums[i + 1] : sums[i];
    __syncthreads();
    if (i < size) sums[threadIdx.x] = sum;
    __syncthreads();
  }
  if (threadIdx.x == 0) out[blockIdx.x] = sums[0];
}

__global__ void add_norms_kernel(const double* norms, std::size_t count, double* out) {
  double sum = 0;
  for (std::size_t i = 0; i < count; ++i) sum += norms[i];
  *out = sum;
}

std::size_t pieces(std::size_t count, std::size_t size) { return (count + size - 1) / size; }

}  // namespace

void squared_norm_cuda(DType type, const void* x, std::size_t count, double* scratch, double* out,
                       Stream stream) {
  const cudaStream_t queue = handle_of(stream);
  if (count > 0) {
    with_element(type, "squared norm", [&](auto element) {
      using E = decltype(element);
      squares_kernel<E>
          <<<blocks_for(pieces(count, norm_block) * norm_sums), block_threads, 0, queue>>>(
              static_cast<const typename E::Stored*>(x), count, scratch);
    });
    check_launch("squared norm");
  }
  const std::size_t level = pieces(count, norm_block);
  add_pairs_cuda(scratch, level, scratch + level, out, stream);
}

void add_pairs_cuda(const double* sums, std::size_t count, double* scratch, double* out,
                    Stream stream) {
  const cudaStream_t queue = handle_of(stream);
  for (; count > norm_chunk; count = pieces(count, norm_chunk)) {
    const auto blocks = static_cast<unsigned>(pieces(count, norm_chunk));
    pairs_kernel<<<blocks, norm_chunk / 2, 0, queue>>>(sums, count, scratch);
    check_launch("squared norm: pairs");
    sums = scratch;
    scratch += blocks;
  }
  if (count == 0) return add_norms_cuda(nullptr, 0, out, stream);
  pairs_kernel<<<1, norm_chunk / 2, 0, queue>>>(sums, count, out);
  check_launch("squared norm: pairs");
}

void add_norms_cuda(const double* norms, std::size_t count, double* out, Stream stream) {
  add_norms_kernel<<<1, 1, 0, handle_of(stream)>>>(norms, count, out);
  check_launch("sum of norms");
}

}  // namespace thinwire
