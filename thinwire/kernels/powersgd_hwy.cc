// powersgd_hwy.cc: a matrix and its thin factors with the widest vectors of the machine. Factors
// are processed in groups of four: their sums stay in registers, and from the second group on E
// comes from the L1 cache.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/powersgd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "thinwire/kernels/powersgd_hwy.cc"
#include <hwy/foreach_target.h>
// Highway requires this include after foreach_target.h.
#include <hwy/highway.h>

#include <algorithm>
#include <type_traits>

#include "thinwire/kernels/limit.h"
#include "thinwire/kernels/norm.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr std::size_t group = 4;         // factors at once
constexpr std::size_t rows_at_once = 8;  // rows of E per load of Q in a product of columns

// Calls body with the number of factors, one to four, as a constant.
template <typename Body>
HWY_INLINE void WithFactors(std::size_t factors, Body body) {
  switch (factors) {
    case 1:
      return body(std::integral_constant<std::size_t, 1>());
    case 2:
      return body(std::integral_constant<std::size_t, 2>());
    case 3:
      return body(std::integral_constant<std::size_t, 3>());
    default:
      return body(std::integral_constant<std::size_t, 4>());
  }
}

// Adds a block of a row times `factors` columns of Q to p. With `taking`, adds g to the row first.
template <std::size_t factors, bool taking>
HWY_INLINE bool TakeRow(const Panel& panel, const float* g, float* e, const float* q, float* p) {
  float sums[factors][16] = {};
  bool finite = true;
  std::size_t j = 0;
  // Vectors of unknown length cannot form an array; then the plain sums are used.
#if !HWY_HAVE_SCALABLE
  const hn::CappedTag<float, 16> d;
  constexpr std::size_t lanes = hn::MaxLanes(hn::CappedTag<float, 16>());
  constexpr std::size_t vectors = 16 / lanes;
  hn::Vec<decltype(d)> part[factors][vectors];
  for (auto& factor : part) {
    for (auto& sum : factor) sum = hn::Zero(d);
  }
  const auto limit = hn::Set(d, gradient_limit);
  auto sound = hn::Le(hn::Zero(d), limit);
  for (; panel.cols - j >= 16; j += 16) {
    for (std::size_t v = 0; v < vectors; ++v) {
      const std::size_t at = j + v * lanes;
      auto x = hn::LoadU(d, e + at);
      if constexpr (taking) {
        const auto step = hn::LoadU(d, g + at);
        const auto good = hn::Le(hn::Abs(step), limit);
        x = hn::IfThenElse(good, hn::Add(x, step), x);
        sound = hn::And(sound, good);
        hn::StoreU(x, d, e + at);
      }
      for (std::size_t k = 0; k < factors; ++k) {
        const auto y = hn::LoadU(d, q + k * panel.stride + at);
        part[k][v] = hn::Add(part[k][v], hn::Mul(x, y));
      }
    }
  }
  finite = hn::AllTrue(d, sound);
  for (std::size_t k = 0; k < factors; ++k) {
    for (std::size_t v = 0; v < vectors; ++v) hn::StoreU(part[k][v], d, sums[k] + v * lanes);
  }
#endif
  for (; j < panel.cols; ++j) {
    if constexpr (taking) {
      const bool good = within_limit(g[j]);
      e[j] = good ? e[j] + g[j] : e[j];
      finite = finite && good;
    }
    for (std::size_t k = 0; k < factors; ++k) sums[k][j % 16] += e[j] * q[k * panel.stride + j];
  }
  for (std::size_t k = 0; k < factors; ++k) p[k] += add_sums(sums[k]);
  return finite;
}

bool Take(const Panel& panel, const float* g, float* e, const float* q, float* p) {
  bool finite = true;
  for (std::size_t i = 0; i < panel.rows; ++i) {
    for (std::size_t k = 0; k < panel.rank; k += group) {
      WithFactors(std::min(group, panel.rank - k), [&](auto factors) HWY_ATTR {
        float* out = p + i * panel.rank + k;
        std::fill_n(out, std::size_t{factors}, 0.0f);
        for (std::size_t j = 0; j < panel.cols; j += powersgd_cols) {
          const Panel block{1, std::min(powersgd_cols, panel.cols - j), panel.stride, panel.rank};
          const float* columns = q + k * panel.stride + j;
          float* row = e + i * panel.stride + j;
          if (k == 0) {
            const float* from = g + i * panel.stride + j;
            finite = TakeRow<factors, true>(block, from, row, columns, out) && finite;
          } else {
            TakeRow<factors, false>(block, nullptr, row, columns, out);
          }
        }
      });
    }
  }
  return finite;
}

// Adds a few rows of E, each times its element of P, to `factors` rows of sums, which are
// powersgd_cols apart.
template <std::size_t factors>
HWY_INLINE void ProjectRows(const Panel& panel, std::size_t rows, const float* e, const float* p,
                            float* sums) {
  const hn::ScalableTag<float> d;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t j = 0;
#if !HWY_HAVE_SCALABLE
  for (; panel.cols - j >= lanes; j += lanes) {
    hn::Vec<decltype(d)> sum[factors];
    for (std::size_t k = 0; k < factors; ++k) sum[k] = hn::LoadU(d, sums + k * powersgd_cols + j);
    for (std::size_t i = 0; i < rows; ++i) {
      const auto x = hn::LoadU(d, e + i * panel.stride + j);
      for (std::size_t k = 0; k < factors; ++k)
        sum[k] = hn::Add(sum[k], hn::Mul(x, hn::Set(d, p[i * panel.rank + k])));
    }
    for (std::size_t k = 0; k < factors; ++k) hn::StoreU(sum[k], d, sums + k * powersgd_cols + j);
  }
#endif
  for (; j < panel.cols; ++j) {
    for (std::size_t i = 0; i < rows; ++i) {
      for (std::size_t k = 0; k < factors; ++k)
        sums[k * powersgd_cols + j] += e[i * panel.stride + j] * p[i * panel.rank + k];
    }
  }
}

// Adds a block of rows to Q^T. The panel has at most powersgd_rows rows and powersgd_cols columns.
HWY_INLINE void ProjectBlock(const Panel& panel, const float* e, const float* p, float* q) {
  float sums[group * powersgd_cols];
  for (std::size_t k = 0; k < panel.rank; k += group) {
    std::fill_n(sums, group * powersgd_cols, 0.0f);
    WithFactors(std::min(group, panel.rank - k), [&](auto factors) HWY_ATTR {
      for (std::size_t i = 0; i < panel.rows; i += rows_at_once)
        ProjectRows<factors>(panel, std::min(rows_at_once, panel.rows - i), e + i * panel.stride,
                             p + i * panel.rank + k, sums);
      for (std::size_t f = 0; f < factors; ++f) {
        float* to = q + (k + f) * panel.stride;
        for (std::size_t j = 0; j < panel.cols; ++j) to[j] += sums[f * powersgd_cols + j];
      }
    });
  }
}

void Project(const Panel& panel, const float* e, const float* p, float* q) {
  for (std::size_t k = 0; k < panel.rank; ++k) std::fill_n(q + k * panel.stride, panel.cols, 0.0f);
  for (std::size_t j = 0; j < panel.cols; j += powersgd_cols) {
    for (std::size_t i = 0; i < panel.rows; i += powersgd_rows) {
      const Panel block{std::min(powersgd_rows, panel.rows - i),
                        std::min(powersgd_cols, panel.cols - j), panel.stride, panel.rank};
      ProjectBlock(block, e + i * panel.stride + j, p + i * panel.rank, q + j);
    }
  }
}

// A vector of a row of P Q^T. `factors` is the rank, as a constant where it is small.
template <typename D, typename Factors>
HWY_INLINE hn::Vec<D> Elements(D d, Factors factors, std::size_t stride, const float* p,
                               const float* q) {
  auto sum = hn::Mul(hn::Set(d, p[0]), hn::LoadU(d, q));
  for (std::size_t k = 1; k < factors; ++k)
    sum = hn::Add(sum, hn::Mul(hn::Set(d, p[k]), hn::LoadU(d, q + k * stride)));
  return sum;
}

// With `settling` subtracts the product, else writes it.
template <bool settling, typename Factors>
HWY_INLINE void GiveRows(const Panel& panel, Factors factors, std::size_t whole, const float* p,
                         const float* q, float* to) {
  const hn::ScalableTag<float> d;
  for (std::size_t i = 0; i < panel.rows; ++i) {
    for (std::size_t j = 0; j < whole; j += hn::Lanes(d)) {
      float* const at = to + i * panel.stride + j;
      const auto product = Elements(d, factors, panel.stride, p + i * panel.rank, q + j);
      hn::StoreU(settling ? hn::Sub(hn::LoadU(d, at), product) : product, d, at);
    }
  }
}

template <bool settling>
HWY_INLINE void GiveOrSettle(const Panel& panel, const float* p, const float* q, float* to) {
  const std::size_t whole = panel.cols - panel.cols % hn::Lanes(hn::ScalableTag<float>());
  if (panel.rank <= group) {
    WithFactors(panel.rank, [&](auto factors)
                                HWY_ATTR { GiveRows<settling>(panel, factors, whole, p, q, to); });
  } else {
    GiveRows<settling>(panel, panel.rank, whole, p, q, to);
  }
  const Panel rest{panel.rows, panel.cols - whole, panel.stride, panel.rank};
  const auto reference = settling ? powersgd_settle_reference : powersgd_give_reference;
  reference(rest, p, q + whole, to + whole);
}

void Give(const Panel& panel, const float* p, const float* q, float* average) {
  GiveOrSettle<false>(panel, p, q, average);
}

void Settle(const Panel& panel, const float* p, const float* q, float* e) {
  GiveOrSettle<true>(panel, p, q, e);
}

}  // namespace HWY_NAMESPACE
}  // namespace thinwire
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinwire {

HWY_EXPORT(Take);
HWY_EXPORT(Project);
HWY_EXPORT(Give);
HWY_EXPORT(Settle);

bool powersgd_take(const Panel& panel, const float* g, float* e, const float* q, float* p) {
  return HWY_DYNAMIC_DISPATCH(Take)(panel, g, e, q, p);
}

void powersgd_project(const Panel& panel, const float* e, const float* p, float* q) {
  HWY_DYNAMIC_DISPATCH(Project)(panel, e, p, q);
}

void powersgd_give(const Panel& panel, const float* p, const float* q, float* average) {
  HWY_DYNAMIC_DISPATCH(Give)(panel, p, q, average);
}

void powersgd_settle(const Panel& panel, const float* p, const float* q, float* e) {
  HWY_DYNAMIC_DISPATCH(Settle)(panel, p, q, e);
}

}  // namespace thinwire
#endif
