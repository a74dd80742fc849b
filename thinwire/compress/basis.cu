// basis.cu: Gram-Schmidt, twice over, of all matrices at once: a thread block each. Thread t has
// the elements t, t + 1024, ... of every vector and adds their products, so only sums meet in
// shared memory.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/compress/basis.h"
#include "thinwire/compress/powersgd_cuda.h"
#include "thinwire/core/launch.cuh"

namespace thinwire {
namespace {

constexpr unsigned threads = basis_sums;
constexpr unsigned warp = 32;
constexpr unsigned most_rank = 256;

// In the order of a tree over all threads: first over warps, thread by thread, then over the
// threads of a warp. Every thread gets the sum.
__device__ double add_threads(double x) {
  __shared__ double all[warp][warp + 1], sums[warp];
  const unsigned lane = threadIdx.x % warp, number = threadIdx.x / warp;
  all[lane][number] = x;
  __syncthreads();
  x = all[number][lane];
  for (unsigned half = warp / 2; half > 0; half /= 2) x += __shfl_xor_sync(~0u, x, half);
  if (lane == 0) sums[number] = x;
  __syncthreads();
  x = sums[lane];
  for (unsigned half = warp / 2; half > 0; half /= 2) x += __shfl_xor_sync(~0u, x, half);
  return x;
}

// Subtracts share * minus from x, unless minus is null, then adds the products of x and `times`, or
// its squares where that is null. A few elements are loaded before the first is stored.
__device__ double sweep(double* x, std::uint32_t length, const double* minus, double share,
                        const double* times) {
  constexpr unsigned few = 4;
  double sum = 0;
  for (std::uint32_t start = threadIdx.x; start < length; start += few * threads) {
    double value[few], other[few], factor[few];
#pragma unroll
    for (unsigned k = 0; k < few; ++k) {
      const std::uint32_t i = start + k * threads;
      if (i >= length) continue;
      value[k] = x[i];
      other[k] = minus == nullptr ? 0 : minus[i];
      factor[k] = times == nullptr ? 0 : times[i];
    }
#pragma unroll
    for (unsigned k = 0; k < few; ++k) {
      const std::uint32_t i = start + k * threads;
      if (i >= length) continue;
      if (minus != nullptr) {
        value[k] -= share * other[k];
        x[i] = value[k];
      }
      sum += value[k] * (times == nullptr ? value[k] : factor[k]);
    }
  }
  return add_threads(sum);
}

// The vectors of one matrix.
struct Vectors {
  double* memory;  // rank vectors
  std::uint32_t length;
  bool* done;  // of earlier vectors: not zero

  __device__ double* at(std::uint32_t k) const { return memory + std::uint64_t{k} * length; }

  // Removes the directions of earlier vectors from vector k and scales the rest to length 1.
  // Returns false when nothing is left.
  __device__ bool complete(std::uint32_t k) const {
    double* const x = at(k);
    const double before = sqrt(sweep(x, length, nullptr, 0, nullptr));
    const double* minus = nullptr;
    double share = 0;
    for (int pass = 0; pass < 2; ++pass) {
      for (std::uint32_t other = 0; other < k; ++other) {
        if (!done[other]) continue;
        share = sweep(x, length, minus, share, at(other));
        minus = at(other);
      }
    }
    const double norm = minus == nullptr ? before : sqrt(sweep(x, length, minus, share, nullptr));
    if (!(norm > basis_negligible * before)) return false;
    for (std::uint32_t i = threadIdx.x; i < length; i += threads) x[i] /= norm;
    return true;
  }
};

enum class Source : std::uint8_t { p, q, draws };

template <Source source>
__global__ void __launch_bounds__(threads)
    orthonormalise(const PowerSgdDevice on, std::uint64_t step) {
  __shared__ bool done[most_rank];
  const PowerSgdMatrix matrix = on.matrices[blockIdx.x];
  constexpr bool of_p = source == Source::p;
  const std::uint32_t length = of_p ? matrix.rows : matrix.cols, rank = matrix.rank;
  const std::uint64_t start = of_p ? matrix.p : matrix.q;
  const std::uint64_t seed = random_at(matrix.stream, source == Source::q ? step + 1 : step);
  const Vectors vectors{on.columns + start, length, done};
  // Element i of vector k.
  const auto place = [&](std::uint32_t k, std::uint32_t i) {
    return start + (of_p ? std::uint64_t{i} * rank + k : std::uint64_t{k} * length + i);
  };
  const auto draw = [&](std::uint32_t k) {
    for (std::uint32_t i = threadIdx.x; i < length; i += threads)
      vectors.at(k)[i] = basis_draw(seed, length, k, i);
  };
  for (std::uint32_t k = 0; k < rank; ++k) {
    double* const x = vectors.at(k);
    if (source == Source::draws) {
      draw(k);
    } else {
      const float* const from = of_p ? on.p : on.mean_q;
      for (std::uint32_t i = threadIdx.x; i < length; i += threads) x[i] = from[place(k, i)];
    }
    bool sound = vectors.complete(k);
    if (!sound && source == Source::q) {
      draw(k);
      sound = vectors.complete(k);
    }
    float* const to = of_p ? on.p : on.q;
    for (std::uint32_t i = threadIdx.x; i < length; i += threads) {
      const std::uint64_t at = place(k, i);
      if (source == Source::q) on.old_q[at] = on.q[at];
      to[at] = sound ? static_cast<float>(x[i]) : 0.0f;
    }
    // The sums of the next vector are a barrier before it is read.
    if (threadIdx.x == 0) done[k] = sound;
  }
}

template <Source source>
void launch(const PowerSgdDevice& on, std::uint64_t step, Stream stream) {
  if (on.matrix_count == 0) return;
  orthonormalise<source><<<on.matrix_count, threads, 0, handle_of(stream)>>>(on, step);
  check_launch("powersgd: basis");
}

}  // namespace

void basis_of_p_cuda(const PowerSgdDevice& on, Stream stream) { launch<Source::p>(on, 0, stream); }

void basis_of_q_cuda(const PowerSgdDevice& on, std::uint64_t step, Stream stream) {
  launch<Source::q>(on, step, stream);
}

void basis_afresh_cuda(const PowerSgdDevice& on, std::uint64_t step, Stream stream) {
  launch<Source::draws>(on, step, stream);
}

}  // namespace thinwire
