// symmetric_hwy.cc: the passes of an eigendecomposition with the widest vectors of the machine.
// Several rows are processed together, so that sums stay in registers.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/symmetric.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "thinwire/kernels/symmetric_hwy.cc"
#include <hwy/foreach_target.h>
// Highway requires this include after foreach_target.h.
#include <hwy/highway.h>

#include <algorithm>

HWY_BEFORE_NAMESPACE();
namespace thinwire {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Vectors of unknown length cannot form an array; then the plain loops are used.
#if HWY_HAVE_SCALABLE

void Gram(const double* a, std::size_t rows, std::size_t stride, double* g) {
  symmetric_gram_reference(a, rows, stride, g);
}

void Step(double* g, std::size_t size, std::size_t stride, const double* u, const double* w,
          const double* v, double* product) {
  symmetric_step_reference(g, size, stride, u, w, v, product);
}

#else

using Tag = hn::CappedTag<double, symmetric_block>;
constexpr std::size_t rows_at_once = 4;  // more rows would not fit into the registers

void Gram(const double* a, std::size_t rows, std::size_t stride, double* g) {
  const Tag d;
  for (std::size_t i = 0; i < stride; i += symmetric_block) {
    for (std::size_t j = i; j < stride; j += hn::Lanes(d)) {
      hn::Vec<Tag> sums[symmetric_block];
      for (auto& sum : sums) sum = hn::Zero(d);
      for (std::size_t r = 0; r < rows; ++r) {
        const double* row = a + r * stride;
        const auto x = hn::LoadU(d, row + j);
        for (std::size_t k = 0; k < symmetric_block; ++k)
          sums[k] = hn::Add(sums[k], hn::Mul(hn::Set(d, row[i + k]), x));
      }
      for (std::size_t k = 0; k < symmetric_block; ++k) {
        double* to = g + (i + k) * stride + j;
        hn::StoreU(hn::Add(hn::LoadU(d, to), sums[k]), d, to);
      }
    }
  }
}

// `count` rows from row i on.
template <std::size_t count>
HWY_INLINE void StepRows(double* g, std::size_t i, std::size_t columns, std::size_t stride,
                         const double* u, const double* w, const double* v, double* product) {
  const Tag d;
  for (std::size_t j = 0; j < columns; j += hn::Lanes(d)) {
    const auto uj = hn::LoadU(d, u + j), wj = hn::LoadU(d, w + j);
    auto sum = hn::LoadU(d, product + j);
    for (std::size_t k = i; k < i + count; ++k) {
      double* at = g + k * stride + j;
      const auto taken = hn::Add(hn::Mul(hn::Set(d, u[k]), wj), hn::Mul(hn::Set(d, w[k]), uj));
      const auto rest = hn::Sub(hn::LoadU(d, at), taken);
      hn::StoreU(rest, d, at);
      sum = hn::Add(sum, hn::Mul(hn::Set(d, v[k]), rest));
    }
    hn::StoreU(sum, d, product + j);
  }
}

void Step(double* g, std::size_t size, std::size_t stride, const double* u, const double* w,
          const double* v, double* product) {
  const std::size_t columns = (size + symmetric_block - 1) / symmetric_block * symmetric_block;
  std::fill_n(product, columns, 0.0);
  std::size_t i = 0;
  for (; size - i >= rows_at_once; i += rows_at_once)
    StepRows<rows_at_once>(g, i, columns, stride, u, w, v, product);
  for (; i < size; ++i) StepRows<1>(g, i, columns, stride, u, w, v, product);
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace thinwire
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinwire {

HWY_EXPORT(Gram);
HWY_EXPORT(Step);

void symmetric_gram(const double* a, std::size_t rows, std::size_t stride, double* g) {
  HWY_DYNAMIC_DISPATCH(Gram)(a, rows, stride, g);
}

void symmetric_step(double* g, std::size_t size, std::size_t stride, const double* u,
                    const double* w, const double* v, double* product) {
  HWY_DYNAMIC_DISPATCH(Step)(g, size, stride, u, w, v, product);
}

}  // namespace thinwire
#endif
