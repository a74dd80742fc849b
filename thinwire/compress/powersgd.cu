// powersgd.cu: the passes over all matrices of a bucket. Ranks up to four are constants of a kernel
// (`fixed`), so that sums and factors stay in registers; for higher ones `fixed` is 0 and factors
// are processed in groups of four, which read v again.
// SPDX-License-Identifier: Apache-2.0
#include <limits>

#include "thinwire/compress/powersgd_cuda.h"
#include "thinwire/core/element.h"
#include "thinwire/core/launch.cuh"
#include "thinwire/kernels/limit.h"

namespace thinwire {
namespace {

constexpr unsigned threads = 128;
constexpr unsigned lanes = 16;  // threads per row of take: one per sum of kernels/powersgd.h
constexpr int rows_each = take_rows / (threads / lanes);
constexpr int rows_at_once = 8;  // in project and give
constexpr int group = 4;         // factors at once where the rank is no constant

static_assert(give_cols == threads);

// A few rows of a tile and one lane's columns of them.
struct Rows {
  const PowerSgdMatrix& matrix;
  std::uint32_t first, count;  // rows
  std::uint32_t col, end;      // columns: col, col + lanes, ...

  __device__ std::uint64_t element(int r, std::uint32_t j) const {
    return matrix.offset + std::uint64_t{first + r} * matrix.cols + j;
  }
  __device__ std::uint64_t p(int r) const {
    return matrix.p + std::uint64_t{first + r} * matrix.rank;
  }
  __device__ std::uint64_t q(int k, std::uint32_t j) const {
    return matrix.q + static_cast<std::uint64_t>(k) * matrix.cols + j;
  }
};

// Writes the sums of one block of columns: over the lanes as a tree.
template <int factors>
__device__ void write_sums(const PowerSgdDevice& on, const Rows& rows, int first_factor, int count,
                           float (&sums)[rows_each][factors]) {
  const PowerSgdMatrix& matrix = rows.matrix;
  const std::uint64_t block = rows.col / take_cols;
  float* const to =
      on.sums + matrix.p_sums + (block * matrix.rows + rows.first) * matrix.rank + first_factor;
#pragma unroll
  for (int r = 0; r < rows_each; ++r) {
#pragma unroll
    for (int k = 0; k < factors; ++k) {
      float sum = sums[r][k];
      for (unsigned half = lanes / 2; half > 0; half /= 2)
        sum += __shfl_down_sync(~0u, sum, half, lanes);
      if (threadIdx.x % lanes == 0 && r < rows.count && k < count)
        to[static_cast<std::uint64_t>(r) * matrix.rank + k] = sum;
    }
  }
}

template <typename E, int fixed>
__global__ void __launch_bounds__(threads)
    take(const PowerSgdDevice on, const PowerSgdTile* tiles, const typename E::Stored* gradient,
         Verdict* verdict) {
  constexpr int factors = fixed == 0 ? group : fixed;
  const PowerSgdTile tile = tiles[blockIdx.x];
  const PowerSgdMatrix matrix = on.matrices[tile.matrix];
  const int rank = fixed == 0 ? static_cast<int>(matrix.rank) : fixed;
  const std::uint32_t first = min(tile.row + threadIdx.x / lanes * rows_each, matrix.rows);
  const Rows rows{matrix, first, min(std::uint32_t{rows_each}, matrix.rows - first),
                  tile.col + threadIdx.x % lanes, min(tile.col + take_cols, matrix.cols)};
  const bool settles = on.flags->given == on.layout;

  float old_p[rows_each][factors];
  if constexpr (fixed != 0) {
#pragma unroll
    for (int r = 0; r < rows_each; ++r) {
#pragma unroll
      for (int k = 0; k < fixed; ++k)
        old_p[r][k] = settles && r < rows.count ? on.p[rows.p(r) + k] : 0;
    }
  }

  float sums[rows_each][factors] = {};
  bool bad = false;
  for (std::uint32_t j = rows.col; j < rows.end; j += lanes) {
    float x[rows_each], step[rows_each];
#pragma unroll
    for (int r = 0; r < rows_each; ++r) {
      x[r] = r < rows.count ? on.v[rows.element(r, j)] : 0;
      step[r] = r < rows.count ? E::widen(gradient[rows.element(r, j)]) : 0;
    }
    if (settles) {
      float sent[rows_each];
#pragma unroll
      for (int k = 0; k < (fixed == 0 ? rank : fixed); ++k) {
        const float q = on.kept_q[rows.q(k, j)];
#pragma unroll
        for (int r = 0; r < rows_each; ++r) {
          float p = 0;
          if constexpr (fixed != 0) {
            p = old_p[r][k];
          } else if (r < rows.count) {
            p = on.p[rows.p(r) + k];
          }
          sent[r] = k == 0 ? p * q : sent[r] + p * q;
        }
      }
#pragma unroll
      for (int r = 0; r < rows_each; ++r) x[r] -= sent[r];
    }
#pragma unroll
    for (int r = 0; r < rows_each; ++r) {
      if (within_limit(step[r])) {
        x[r] += step[r];
      } else {
        bad = true;
      }
      if (r < rows.count) on.v[rows.element(r, j)] = x[r];
    }
#pragma unroll
    for (int k = 0; k < factors; ++k) {
      const float q = on.q[rows.q(k, j)];
#pragma unroll
      for (int r = 0; r < rows_each; ++r) sums[r][k] += x[r] * q;
    }
  }
  write_sums(on, rows, 0, factors, sums);
  if constexpr (fixed == 0) {
    for (int start = group; start < rank; start += group) {
      const int count = min(group, rank - start);
      float more[rows_each][group] = {};
      for (std::uint32_t j = rows.col; j < rows.end; j += lanes) {
#pragma unroll
        for (int k = 0; k < group; ++k) {
          const float q = k < count ? on.q[rows.q(start + k, j)] : 0;
#pragma unroll
          for (int r = 0; r < rows_each; ++r)
            more[r][k] += (r < rows.count ? on.v[rows.element(r, j)] : 0) * q;
        }
      }
      write_sums(on, rows, start, count, more);
    }
  }
  if (bad) {
    on.flags->unsound = 1;
    verdict->unsound = 1;
  }
}

template <typename E>
__global__ void take_plain(const PowerSgdDevice on, const typename E::Stored* gradient, float* out,
                           Verdict* verdict) {
  const PowerSgdPiece piece = on.pieces[blockIdx.x];
  const bool settles = on.flags->given == on.layout;
  bool bad = false;
  for (std::uint32_t i = threadIdx.x; i < piece.count; i += blockDim.x) {
    const float step = E::widen(gradient[piece.offset + i]);
    float x = settles ? 0.0f : on.v[piece.offset + i];
    if (within_limit(step)) {
      x += step;
    } else {
      bad = true;
    }
    on.v[piece.offset + i] = x;
    out[piece.at + i] = x;
  }
  if (bad) {
    on.flags->unsound = 1;
    verdict->unsound = 1;
  }
}

// The matrix that has element `at` of all P (or all Q).
__device__ const PowerSgdMatrix& matrix_with(const PowerSgdDevice& on, std::uint64_t at,
                                             std::uint64_t PowerSgdMatrix::*start) {
  std::uint32_t from = 0, to = on.matrix_count;  // it is in [from, to)
  while (to - from > 1) {
    const std::uint32_t middle = from + (to - from) / 2;
    (on.matrices[middle].*start <= at ? from : to) = middle;
  }
  return on.matrices[from];
}

__device__ float add_blocks(const float* sums, std::uint64_t stride, std::uint32_t blocks) {
  float total = 0;
#pragma unroll 8
  for (std::uint32_t b = 0; b < blocks; ++b) total += sums[b * stride];
  return total;
}

// The last kernel of round 0: v contains this step's gradient now.
__global__ void gather_p(const PowerSgdDevice on, float* out) {
  for (std::uint64_t at = thread_index(); at < on.p_count; at += thread_count()) {
    const PowerSgdMatrix& matrix = matrix_with(on, at, &PowerSgdMatrix::p);
    out[at] = add_blocks(on.sums + matrix.p_sums + (at - matrix.p),
                         std::uint64_t{matrix.rows} * matrix.rank,
                         (matrix.cols + take_cols - 1) / take_cols);
  }
  if (thread_index() != 0) return;
  if (on.flags->unsound != 0) out[0] = std::numeric_limits<float>::quiet_NaN();
  *on.flags = {};
}

__global__ void gather_q(const PowerSgdDevice on, float* out) {
  for (std::uint64_t at = thread_index(); at < on.q_count; at += thread_count()) {
    const PowerSgdMatrix& matrix = matrix_with(on, at, &PowerSgdMatrix::q);
    const float total = add_blocks(on.sums + matrix.q_sums + (at - matrix.q),
                                   std::uint64_t{matrix.cols} * matrix.rank,
                                   (matrix.rows + give_rows - 1) / give_rows);
    out[at] = total;
    if (on.own_q != nullptr) on.own_q[at] = total;
  }
}

template <int fixed>
__global__ void __launch_bounds__(threads)
    project(const PowerSgdDevice on, const PowerSgdTile* tiles) {
  constexpr int factors = fixed == 0 ? group : fixed;
  const PowerSgdTile tile = tiles[blockIdx.x];
  const PowerSgdMatrix matrix = on.matrices[tile.matrix];
  const int rank = fixed == 0 ? static_cast<int>(matrix.rank) : fixed;
  const std::uint32_t j = tile.col + threadIdx.x;
  if (j >= matrix.cols) return;
  const std::uint32_t rows = min(give_rows, matrix.rows - tile.row);
  const float* const v = on.v + matrix.offset + std::uint64_t{tile.row} * matrix.cols + j;
  const float* const p = on.p + matrix.p + std::uint64_t{tile.row} * rank;
  float* const to =
      on.sums + matrix.q_sums + std::uint64_t{tile.row / give_rows} * rank * matrix.cols + j;
  for (int start = 0; start < rank; start += factors) {
    const int count = fixed == 0 ? min(group, rank - start) : fixed;
    float sums[factors] = {};
    for (std::uint32_t i = 0; i < rows; i += rows_at_once) {
      float x[rows_at_once];
#pragma unroll
      for (int r = 0; r < rows_at_once; ++r)
        x[r] = i + r < rows ? v[std::uint64_t{i + r} * matrix.cols] : 0;
#pragma unroll
      for (int r = 0; r < rows_at_once; ++r) {
        if (i + r >= rows) break;
#pragma unroll
        for (int k = 0; k < factors; ++k)
          if (k < count) sums[k] += x[r] * p[std::uint64_t{i + r} * rank + start + k];
      }
    }
#pragma unroll
    for (int k = 0; k < factors; ++k)
      if (k < count) to[static_cast<std::uint64_t>(start + k) * matrix.cols] = sums[k];
  }
}

// With `settling` subtracts P Q^T from `to`, else writes it there.
template <typename E, int fixed, bool settling>
__device__ void give_tile(const PowerSgdDevice& on, const PowerSgdTile& tile, const float* all_q,
                          typename E::Stored* to) {
  const PowerSgdMatrix matrix = on.matrices[tile.matrix];
  const int rank = fixed == 0 ? static_cast<int>(matrix.rank) : fixed;
  const std::uint32_t j = tile.col + threadIdx.x;
  if (j >= matrix.cols) return;
  const std::uint32_t rows = min(give_rows, matrix.rows - tile.row);
  const float* const p = on.p + matrix.p + std::uint64_t{tile.row} * rank;
  const float* const q = all_q + matrix.q + j;
  to += matrix.offset + std::uint64_t{tile.row} * matrix.cols + j;
  float known[fixed == 0 ? 1 : fixed];
  if constexpr (fixed != 0) {
#pragma unroll
    for (int k = 0; k < fixed; ++k) known[k] = q[static_cast<std::uint64_t>(k) * matrix.cols];
  }
  for (std::uint32_t i = 0; i < rows; i += rows_at_once) {
    float sum[rows_at_once];
#pragma unroll
    for (int k = 0; k < (fixed == 0 ? rank : fixed); ++k) {
      float factor = 0;
      if constexpr (fixed != 0) {
        factor = known[k];
      } else {
        factor = q[static_cast<std::uint64_t>(k) * matrix.cols];
      }
#pragma unroll
      for (int r = 0; r < rows_at_once; ++r) {
        if (i + r >= rows) break;
        const float product = p[std::uint64_t{i + r} * rank + k] * factor;
        sum[r] = k == 0 ? product : sum[r] + product;
      }
    }
#pragma unroll
    for (int r = 0; r < rows_at_once; ++r) {
      if (i + r >= rows) break;
      auto& element = to[std::uint64_t{i + r} * matrix.cols];
      if constexpr (settling) {
        element -= sum[r];
      } else {
        element = E::narrow(sum[r]);
      }
    }
  }
}

template <typename E, int fixed>
__global__ void __launch_bounds__(threads)
    give(const PowerSgdDevice on, const PowerSgdTile* tiles, typename E::Stored* average,
         const Verdict* verdict) {
  if (verdict->unsound != 0) return;  // the gradient is still needed
  give_tile<E, fixed, false>(on, tiles[blockIdx.x], on.mean_q, average);
}

template <int fixed>
__global__ void __launch_bounds__(threads)
    settle(const PowerSgdDevice on, const PowerSgdTile* tiles) {
  if (on.flags->given != on.layout) return;
  give_tile<Element<DType::f32>, fixed, true>(on, tiles[blockIdx.x], on.kept_q, on.v);
}

template <typename E>
__global__ void give_plain(const PowerSgdDevice on, typename E::Stored* average,
                           const Verdict* verdict) {
  if (blockIdx.x == 0 && threadIdx.x == 0) on.flags->given = on.layout;
  if (verdict->unsound != 0 || blockIdx.x >= on.piece_count) return;
  const PowerSgdPiece piece = on.pieces[blockIdx.x];
  for (std::uint32_t i = threadIdx.x; i < piece.count; i += blockDim.x)
    average[piece.offset + i] = E::narrow(on.p[on.p_count + piece.at + i]);
}

__global__ void settle_plain(const PowerSgdDevice on) {
  if (on.flags->given != on.layout) return;
  const PowerSgdPiece piece = on.pieces[blockIdx.x];
  for (std::uint32_t i = threadIdx.x; i < piece.count; i += blockDim.x) on.v[piece.offset + i] = 0;
}

template <typename E>
__global__ void conclude(const PowerSgdDevice on, typename E::Stored* gradient, float fill,
                         const Verdict* verdict) {
  if (!verdict->void_step()) return;
  if (thread_index() == 0) on.flags->given = 0;
  for (std::uint64_t i = thread_index(); i < on.q_count; i += thread_count()) on.q[i] = on.old_q[i];
  const bool forget = verdict->unsound != 0;
  for (std::uint64_t i = thread_index(); i < on.elements; i += thread_count()) {
    if (forget)
      on.v[i] = taken_out({Accumulate::residual}, E::widen(gradient[i]), 0.0f, {0, on.v[i]}).v;
    gradient[i] = E::narrow(fill);
  }
}

// Calls f with the rank as a constant, or with 0 where it is too high for one.
template <typename F>
void with_rank(std::uint32_t rank, F&& f) {
  switch (rank) {
    case 1:
      return f(std::integral_constant<int, 1>());
    case 2:
      return f(std::integral_constant<int, 2>());
    case 3:
      return f(std::integral_constant<int, 3>());
    case 4:
      return f(std::integral_constant<int, 4>());
    default:
      return f(std::integral_constant<int, 0>());
  }
}

template <typename E>
typename E::Stored* elements_at(const TensorView& view) {
  return static_cast<typename E::Stored*>(view.data);
}

}  // namespace

void powersgd_take_cuda(const PowerSgdDevice& on, std::span<const PowerSgdGroup> groups,
                        const TensorView& gradient, float* out, Verdict* verdict, Stream stream) {
  if (on.elements == 0) return;
  const cudaStream_t queue = handle_of(stream);
  with_element(gradient.dtype, "powersgd", [&](auto element) {
    using E = decltype(element);
    for (const PowerSgdGroup& one : groups) {
      with_rank(one.rank, [&](auto fixed) {
        take<E, fixed><<<one.takes, threads, 0, queue>>>(on, on.takes + one.first_take,
                                                         elements_at<E>(gradient), verdict);
      });
      check_launch("powersgd: take");
    }
    if (on.piece_count > 0)
      take_plain<E><<<on.piece_count, block_threads, 0, queue>>>(on, elements_at<E>(gradient),
                                                                 out + on.p_count, verdict);
  });
  check_launch("powersgd: take");
  gather_p<<<blocks_for(on.p_count), block_threads, 0, queue>>>(on, out);
  check_launch("powersgd: P");
}

void powersgd_project_cuda(const PowerSgdDevice& on, std::span<const PowerSgdGroup> groups,
                           float* out, Stream stream) {
  if (on.q_count == 0) return;
  for (const PowerSgdGroup& one : groups) {
    with_rank(one.rank, [&](auto fixed) {
      project<fixed><<<one.gives, threads, 0, handle_of(stream)>>>(on, on.gives + one.first_give);
    });
    check_launch("powersgd: project");
  }
  gather_q<<<blocks_for(on.q_count), block_threads, 0, handle_of(stream)>>>(on, out);
  check_launch("powersgd: Q");
}

void powersgd_give_cuda(const PowerSgdDevice& on, std::span<const PowerSgdGroup> groups,
                        const TensorView& average, const Verdict* verdict, Stream stream) {
  if (on.elements == 0) return;
  const cudaStream_t queue = handle_of(stream);
  with_element(average.dtype, "powersgd", [&](auto element) {
    using E = decltype(element);
    for (const PowerSgdGroup& one : groups) {
      with_rank(one.rank, [&](auto fixed) {
        give<E, fixed><<<one.gives, threads, 0, queue>>>(on, on.gives + one.first_give,
                                                         elements_at<E>(average), verdict);
      });
      check_launch("powersgd: give");
    }
    give_plain<E><<<std::max(1u, on.piece_count), block_threads, 0, queue>>>(
        on, elements_at<E>(average), verdict);
  });
  check_launch("powersgd: give");
}

void powersgd_settle_cuda(const PowerSgdDevice& on, std::span<const PowerSgdGroup> groups,
                          Stream stream) {
  if (on.elements == 0) return;
  for (const PowerSgdGroup& one : groups) {
    with_rank(one.rank, [&](auto fixed) {
      settle<fixed><<<one.gives, threads, 0, handle_of(stream)>>>(on, on.gives + one.first_give);
    });
    check_launch("powersgd: settle");
  }
  if (on.piece_count > 0) settle_plain<<<on.piece_count, block_threads, 0, handle_of(stream)>>>(on);
  check_launch("powersgd: settle");
}

void powersgd_conclude_cuda(const PowerSgdDevice& on, const TensorView& gradient, float fill,
                            const Verdict* verdict, Stream stream) {
  if (on.elements == 0) return;
  with_element(gradient.dtype, "powersgd", [&](auto element) {
    using E = decltype(element);
    conclude<E><<<blocks_for(on.elements), block_threads, 0, handle_of(stream)>>>(
        on, elements_at<E>(gradient), fill, verdict);
  });
  check_launch("powersgd: conclude");
}

}  // namespace thinwire
