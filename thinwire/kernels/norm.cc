// norm.cc: squares in sixteen sums, one element at a time.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/norm.h"

namespace thinwire {
namespace {

template <typename T>
T add_tree(const T* sums) {
  T level[16];
  for (std::size_t i = 0; i < 16; ++i) level[i] = sums[i];
  for (std::size_t half = 8; half > 0; half /= 2) {
    for (std::size_t i = 0; i < half; ++i) level[i] += level[i + half];
  }
  return level[0];
}

}  // namespace

double add_sums(const double* sums) { return add_tree(sums); }
float add_sums(const float* sums) { return add_tree(sums); }

void add_squares(const float* x, std::size_t count, double* sums) {
  for (std::size_t i = 0; i < count; ++i) {
    const double value = x[i];
    sums[i % 16] += value * value;
  }
}

double squared_norm_reference(const float* x, std::size_t count) {
  double sums[16] = {};
  add_squares(x, count, sums);
  return add_sums(sums);
}

}  // namespace thinwire
