// ledger.cu: a bucket's ledger on a GPU: one pass per function, by the rules of ledger.h.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/core/buffer.h"
#include "thinwire/core/launch.cuh"
#include "thinwire/kernels/ledger.h"
#include "thinwire/kernels/norm.h"

namespace thinwire {
namespace {

constexpr unsigned per_turn = 4;  // elements that a thread has under way

// A block per piece: pieces are short, and start anywhere in the bucket and in memory.
__global__ void __launch_bounds__(block_threads)
    move_kernel(const LedgerMove move, const LedgerArrays arrays, const LedgerPiece* pieces,
                std::size_t count, const float* part, LedgerNumbers* numbers, float* message) {
  const bool due = move.settles_first || move.settles_last;
  const bool opens = move.takes && !move.closes && move.has_open;
  const bool sends = move.takes && move.closes;
  const float share = numbers->share, first = move.settles_first ? *part : 0;
  const bool writes = ledger_writes_start(move, share);
  for (std::size_t p = blockIdx.x; p < count; p += gridDim.x) {
    const LedgerPiece piece = pieces[p];
    const auto size = static_cast<unsigned>(piece.count);
    for (unsigned i = threadIdx.x; i < size; i += per_turn * block_threads) {
      LedgerElement e[per_turn];
#pragma unroll
      for (unsigned k = 0; k < per_turn; ++k) {
        const unsigned at = i + k * block_threads;
        if (at >= size) continue;
        e[k].weight = piece.weights[at];
        e[k].start = arrays.start[piece.first + at];
        if (due) e[k].due = arrays.due[piece.first + at];
        if (opens) e[k].open = arrays.open[piece.first + at];
      }
#pragma unroll
      for (unsigned k = 0; k < per_turn; ++k) {
        const unsigned at = i + k * block_threads;
        if (at >= size) continue;
        const float now = ledger_move(move, share, first, e[k]);
        if (move.takes && !within_limit(now))
          atomicMin(&numbers->bad, static_cast<std::uint32_t>(piece.first + at));
        piece.weights[at] = e[k].weight;
        if (writes) arrays.start[piece.first + at] = e[k].start;
        if (opens) arrays.open[piece.first + at] = e[k].open;
        if (sends) message[piece.first + at] = now;
      }
    }
  }
}

__global__ void __launch_bounds__(block_threads)
    follow_kernel(const LedgerMove move, const LedgerArrays arrays, const float* part,
                  const LedgerNumbers* numbers, float* message, float* kept) {
  const bool due = move.settles_first || move.settles_last;
  const bool opens = move.takes && move.closes && move.has_open && !move.open_clear;
  const float share = numbers->share, first = move.settles_first ? *part : 0;
  const bool writes = !ledger_writes_start(move, share);
  const bool starts = writes || move.pulls;
  const bool sends = opens || (move.closes && !move.takes);
  const std::size_t stride = thread_count();
  for (std::size_t i = thread_index(); i < arrays.count; i += per_turn * stride) {
    LedgerBooks books[per_turn];
#pragma unroll
    for (unsigned k = 0; k < per_turn; ++k) {
      const std::size_t at = i + k * stride;
      if (at >= arrays.count) continue;
      if (starts) books[k].start = arrays.start[at];
      if (due) books[k].due = arrays.due[at];
      if (opens) books[k].open = arrays.open[at];
      if (move.closes) books[k].message = message[at];
    }
#pragma unroll
    for (unsigned k = 0; k < per_turn; ++k) {
      const std::size_t at = i + k * stride;
      if (at >= arrays.count) continue;
      const float keeps = ledger_follow(move, share, first, books[k]);
      if (writes) arrays.start[at] = books[k].start;
      if (due) arrays.due[at] = books[k].due;
      if (sends) message[at] = books[k].message;
      if (move.closes) kept[at] = keeps;
    }
  }
}

// A warp per block of norm_block elements, as in norm.cu; thread i has sum i.
__global__ void __launch_bounds__(block_threads)
    acknowledge_kernel(const LedgerAcknowledge rule, const LedgerArrays arrays, const float* mean,
                       const float* own, const float* kept, const float* share, double* sums,
                       const Verdict* verdict) {
  if (verdict->void_step()) return;
  const std::size_t warp = thread_index() / norm_sums, warps = thread_count() / norm_sums;
  const std::size_t blocks = (arrays.count + norm_block - 1) / norm_block;
  const unsigned lane = threadIdx.x % norm_sums;
  const float whole = sums == nullptr ? 1 : *share;
  for (std::size_t block = warp; block < blocks; block += warps) {
    const std::size_t begin = block * norm_block;
    const std::size_t size = min(norm_block, arrays.count - begin);
    LedgerProducts sum;
    for (std::size_t i = lane; i < size; i += per_turn * norm_sums) {
      float average[per_turn], made[per_turn], anchor[per_turn], due[per_turn];
#pragma unroll
      for (unsigned k = 0; k < per_turn; ++k) {
        const std::size_t at = begin + i + k * norm_sums;
        if (i + k * norm_sums >= size) continue;
        average[k] = mean[at];
        made[k] = kept[at];
        anchor[k] = arrays.anchor[at];
        due[k] = arrays.due[at];
      }
#pragma unroll
      for (unsigned k = 0; k < per_turn; ++k) {
        const std::size_t at = begin + i + k * norm_sums;
        if (i + k * norm_sums >= size) continue;
        float held = rule.book_b ? arrays.held[at] : 0;
        ledger_acknowledge(rule, average[k], rule.book_b ? own[at] : 0, made[k], anchor[k], due[k],
                           held);
        arrays.anchor[at] = anchor[k];
        arrays.due[at] = due[k];
        if (rule.book_b) arrays.held[at] = held;
        if (sums == nullptr) continue;
        const LedgerProducts one = ledger_products(made[k], whole, average[k]);
        sum.with_mean += one.with_mean;
        sum.with_self += one.with_self;
      }
    }
    if (sums == nullptr) continue;
    for (unsigned half = norm_sums / 2; half > 0; half /= 2) {
      sum.with_mean += __shfl_down_sync(0xffffffffu, sum.with_mean, half);
      sum.with_self += __shfl_down_sync(0xffffffffu, sum.with_self, half);
    }
    if (lane != 0) continue;
    sums[2 + block] = sum.with_mean;
    sums[2 + blocks + block] = sum.with_self;
  }
}

__global__ void listen_kernel(double memory, const double* sums, LedgerNumbers* numbers,
                              const Verdict* verdict) {
  if (!verdict->void_step()) ledger_listen(memory, {sums[0], sums[1]}, numbers->sums);
}

__global__ void share_kernel(LedgerNumbers* numbers, float* share, std::uint64_t workers,
                             bool measures) {
  *share = numbers->share;
  if (measures) numbers->share = ledger_share(numbers->sums, workers);
}

__global__ void clip_kernel(double clip, const double* correction, const double* mean,
                            float* part) {
  *part = static_cast<float>(ledger_clip(clip, *correction, *mean));
}

__global__ void __launch_bounds__(block_threads)
    copy_kernel(LedgerCopy way, const LedgerPiece* pieces, std::size_t count, float* array) {
  for (std::size_t p = blockIdx.x; p < count; p += gridDim.x) {
    const LedgerPiece piece = pieces[p];
    for (unsigned i = threadIdx.x; i < piece.count; i += block_threads) {
      if (way == LedgerCopy::out)
        array[piece.first + i] = piece.weights[i];
      else
        piece.weights[i] = array[piece.first + i];
    }
  }
}

__global__ void __launch_bounds__(block_threads)
    digest_kernel(const float* array, std::size_t count, std::uint64_t* digest) {
  std::uint64_t sum = 0;
  for (std::size_t i = thread_index(); i < count; i += thread_count())
    sum += ledger_digest(__float_as_uint(array[i]), i);
  for (unsigned half = 16; half > 0; half /= 2) sum += __shfl_down_sync(0xffffffffu, sum, half);
  if (threadIdx.x % 32 == 0) atomicAdd(reinterpret_cast<unsigned long long*>(digest), sum);
}

unsigned blocks_of(std::size_t pieces) { return blocks_for(pieces * block_threads); }

}  // namespace

void ledger_move_cuda(const LedgerMove& move, const LedgerArrays& arrays, const LedgerPiece* pieces,
                      std::size_t count, const float* part, LedgerNumbers* numbers, float* message,
                      Stream stream) {
  if (count == 0) return;
  move_kernel<<<blocks_of(count), block_threads, 0, handle_of(stream)>>>(
      move, arrays, pieces, count, part, numbers, message);
  check_launch("ledger: move");
}

void ledger_follow_cuda(const LedgerMove& move, const LedgerArrays& arrays, const float* part,
                        const LedgerNumbers* numbers, float* message, float* kept, Stream stream) {
  if (arrays.count == 0) return;
  follow_kernel<<<blocks_for(arrays.count), block_threads, 0, handle_of(stream)>>>(
      move, arrays, part, numbers, message, kept);
  check_launch("ledger: follow");
}

std::size_t ledger_scratch(std::size_t count) {
  return 2 + 2 * ((count + norm_block - 1) / norm_block) + norm_scratch(count);
}

void ledger_acknowledge_cuda(const LedgerAcknowledge& rule, const LedgerArrays& arrays,
                             const float* mean, const float* own, const float* kept,
                             const float* share, double* sums, const Verdict* verdict,
                             Stream stream) {
  const std::size_t blocks = (arrays.count + norm_block - 1) / norm_block;
  if (arrays.count > 0) {
    acknowledge_kernel<<<blocks_for(blocks * norm_sums), block_threads, 0, handle_of(stream)>>>(
        rule, arrays, mean, own, kept, share, sums, verdict);
    check_launch("ledger: acknowledge");
  }
  if (sums == nullptr) return;
  double* const scratch = sums + 2 + 2 * blocks;
  add_pairs_cuda(sums + 2, blocks, scratch, sums, stream);
  add_pairs_cuda(sums + 2 + blocks, blocks, scratch, sums + 1, stream);
}

void ledger_listen_cuda(double memory, const double* sums, LedgerNumbers* numbers,
                        const Verdict* verdict, Stream stream) {
  listen_kernel<<<1, 1, 0, handle_of(stream)>>>(memory, sums, numbers, verdict);
  check_launch("ledger: listen");
}

void ledger_share_cuda(LedgerNumbers* numbers, float* share, std::uint64_t workers, bool measures,
                       Stream stream) {
  share_kernel<<<1, 1, 0, handle_of(stream)>>>(numbers, share, workers, measures);
  check_launch("ledger: share");
}

void ledger_clip_cuda(double clip, const double* correction, const double* mean, float* part,
                      Stream stream) {
  clip_kernel<<<1, 1, 0, handle_of(stream)>>>(clip, correction, mean, part);
  check_launch("ledger: clip");
}

void ledger_copy_cuda(LedgerCopy way, const LedgerPiece* pieces, std::size_t count, float* array,
                      Stream stream) {
  if (count == 0) return;
  copy_kernel<<<blocks_of(count), block_threads, 0, handle_of(stream)>>>(way, pieces, count, array);
  check_launch("ledger: copy");
}

void ledger_digest_cuda(const float* array, std::size_t count, std::uint64_t* digest,
                        Stream stream) {
  zero_bytes(digest, sizeof *digest, stream);
  if (count == 0) return;
  digest_kernel<<<blocks_for(count, 4 * block_threads), block_threads, 0, handle_of(stream)>>>(
      array, count, digest);
  check_launch("ledger: digest");
}

}  // namespace thinwire
