// norm.cc: the squared norm in its fixed order, one element at a time.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/norm.h"

#include <algorithm>

#include "thinwire/core/element.h"
#include "thinwire/kernels/cast.h"

namespace thinwire {
namespace {

template <typename T>
T add_sixteen(const T* sums) {
  T copy[16];
  std::copy_n(sums, 16, copy);
  return add_tree<16>(copy);
}

template <typename E>
double squares_of_block(const typename E::Stored* x, std::size_t count) {
  double sums[norm_sums] = {};
  for (std::size_t i = 0; i < count; ++i) {
    const double value = E::widen(x[i]);
    sums[i % norm_sums] += value * value;
  }
  return add_tree<norm_sums>(sums);
}

}  // namespace

double add_sums(const double* sums) { return add_sixteen(sums); }
float add_sums(const float* sums) { return add_sixteen(sums); }

void add_squares(const float* x, std::size_t count, double* sums) {
  for (std::size_t i = 0; i < count; ++i) {
    const double value = x[i];
    sums[i % 16] += value * value;
  }
}

double sum_of_squares(const float* x, std::size_t count) {
  double sums[16] = {};
  add_squares(x, count, sums);
  return add_sums(sums);
}

// Halves are widened block by block, which the first cache holds.
double squared_norm(DType type, const void* x, std::size_t count) {
  if (type == DType::f32) return squared_norm(static_cast<const float*>(x), count);
  if (!is_gradient(type)) fail("squared norm: expected f32, f16 or bf16, got ", name_of(type));
  const auto* const halves = static_cast<const std::uint16_t*>(x);
  const auto widen = type == DType::f16 ? cast_from_f16 : cast_from_bf16;
  PairwiseSum sum;
  float block[norm_block];
  for (std::size_t i = 0; i < count; i += norm_block) {
    const std::size_t here = std::min(norm_block, count - i);
    widen(halves + i, block, here, 1);
    sum.add(squared_norm(block, here));
  }
  return sum.total();
}

double squared_norm_reference(DType type, const void* x, std::size_t count) {
  return with_element(type, "squared norm", [&](auto element) {
    using E = decltype(element);
    const auto* elements = static_cast<const typename E::Stored*>(x);
    PairwiseSum sum;
    for (std::size_t i = 0; i < count; i += norm_block)
      sum.add(squares_of_block<E>(elements + i, std::min(norm_block, count - i)));
    return sum.total();
  });
}

double squared_norm_reference(const float* x, std::size_t count) {
  return squared_norm_reference(DType::f32, x, count);
}

}  // namespace thinwire
