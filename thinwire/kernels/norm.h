// norm.h: the squared norm of a gradient, for clipping. One order of additions, which vectors of
// every width and a GPU can follow, so that all have the same bits:
//
//     blocks     4096 elements each, the last one shorter
//     in a block element i is added to sum i % 32; the 32 sums are added as a tree
//     all blocks their sums are added in pairs of neighbours, level by level; where their number is
//                odd the last one goes to the next level as it is
//
// Squares of floats are exact in double, and finite floats cannot overflow their sum.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "thinwire/core/cuda.h"
#include "thinwire/core/device.h"
#include "thinwire/core/dtype.h"

namespace thinwire {

inline constexpr std::size_t norm_block = 4096, norm_sums = 32;  // a warp of a GPU adds a block,
inline constexpr std::size_t norm_chunk = 1024;  // and a thread block this many sums of blocks

// The sum of x*x. It is not finite when an element is not finite: infinite elements give +Inf, a
// NaN gives some NaN. 4 bytes of memory traffic per element.
double squared_norm(const float* x, std::size_t count);
double squared_norm(DType type, const void* x, std::size_t count);  // of f32, f16 or bf16

// The plain reference, for f32, f16 and bf16. Same bits.
double squared_norm_reference(DType type, const void* x, std::size_t count);
double squared_norm_reference(const float* x, std::size_t count);

// The same on a GPU: enqueues it. `scratch` has room for norm_scratch(count) doubles. The result is
// written to `out`. All pointers are to device memory.
void squared_norm_cuda(DType type, const void* x, std::size_t count, double* scratch, double* out,
                       Stream stream);
constexpr std::size_t norm_scratch(std::size_t count) {
  std::size_t level = (count + norm_block - 1) / norm_block, total = level;
  for (; level > norm_chunk; total += level) level = (level + norm_chunk - 1) / norm_chunk;
  return total;
}
// Enqueues the second part alone: adds `count` sums of blocks in pairs of neighbours. `scratch` has
// room for norm_scratch(count * norm_block) doubles.
void add_pairs_cuda(const double* sums, std::size_t count, double* scratch, double* out,
                    Stream stream);
// Enqueues out = norms[0] + norms[1] + ..., in this order: the norm of several buckets.
void add_norms_cuda(const double* norms, std::size_t count, double* out, Stream stream);

// Adds numbers in pairs of neighbours, level by level.
class PairwiseSum {
 public:
  void add(double value) {
    // Bit k of the count: sums_[k] waits for its right neighbour of 2^k numbers.
    int level = 0;
    for (; (count_ >> level & 1) != 0; ++level) value = sums_[level] + value;
    sums_[level] = value;
    ++count_;
  }

  double total() const {
    double sum = 0;
    bool first = true;
    for (int level = 0; level < 64; ++level) {
      if ((count_ >> level & 1) == 0) continue;
      sum = first ? sums_[level] : sums_[level] + sum;
      first = false;
    }
    return sum;
  }

 private:
  double sums_[64] = {};
  std::uint64_t count_ = 0;
};

// A tree over an array: element i and the one half the array further on, and so on. The array is
// overwritten.
template <std::size_t size, typename T>
T add_tree(T* sums) {
  for (std::size_t half = size / 2; half > 0; half /= 2) {
    for (std::size_t i = 0; i < half; ++i) sums[i] += sums[i + half];
  }
  return sums[0];
}

// For short rows and groups: element i is added to sum i % 16, starting at sum 0, and the sixteen
// sums are added as a tree.
void add_squares(const float* x, std::size_t count, double* sums);
double sum_of_squares(const float* x, std::size_t count);
double add_sums(const double* sums);
float add_sums(const float* sums);

}  // namespace thinwire
