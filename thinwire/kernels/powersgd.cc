// powersgd.cc: a matrix and its thin factors, one element at a time.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/powersgd.h"

#include <algorithm>

#include "thinwire/kernels/limit.h"
#include "thinwire/kernels/norm.h"

namespace thinwire {
namespace {

float product_of_rows(const float* a, const float* b, std::size_t count) {
  float total = 0;
  for (std::size_t at = 0; at < count; at += powersgd_cols) {
    float sums[16] = {};
    const std::size_t end = std::min(count, at + powersgd_cols);
    for (std::size_t j = at; j < end; ++j) sums[j % 16] += a[j] * b[j];
    total += add_sums(sums);
  }
  return total;
}

// Column j of E times column k of P.
float product_of_cols(const Panel& panel, const float* e, const float* p, std::size_t j,
                      std::size_t k) {
  float total = 0;
  for (std::size_t at = 0; at < panel.rows; at += powersgd_rows) {
    float sum = 0;
    const std::size_t end = std::min(panel.rows, at + powersgd_rows);
    for (std::size_t i = at; i < end; ++i) sum += e[i * panel.stride + j] * p[i * panel.rank + k];
    total += sum;
  }
  return total;
}

// Element j of a row of P Q^T. `p` is that row of P.
float element(const Panel& panel, const float* p, const float* q, std::size_t j) {
  float sum = p[0] * q[j];
  for (std::size_t k = 1; k < panel.rank; ++k) sum += p[k] * q[k * panel.stride + j];
  return sum;
}

}  // namespace

bool powersgd_take_reference(const Panel& panel, const float* g, float* e, const float* q,
                             float* p) {
  bool finite = true;
  for (std::size_t i = 0; i < panel.rows; ++i) {
    const float* from = g + i * panel.stride;
    float* row = e + i * panel.stride;
    for (std::size_t j = 0; j < panel.cols; ++j) {
      if (within_limit(from[j])) {
        row[j] += from[j];
      } else {
        finite = false;
      }
    }
    for (std::size_t k = 0; k < panel.rank; ++k)
      p[i * panel.rank + k] = product_of_rows(row, q + k * panel.stride, panel.cols);
  }
  return finite;
}

void powersgd_project_reference(const Panel& panel, const float* e, const float* p, float* q) {
  for (std::size_t k = 0; k < panel.rank; ++k) {
    for (std::size_t j = 0; j < panel.cols; ++j)
      q[k * panel.stride + j] = product_of_cols(panel, e, p, j, k);
  }
}

void powersgd_give_reference(const Panel& panel, const float* p, const float* q, float* average) {
  for (std::size_t i = 0; i < panel.rows; ++i) {
    for (std::size_t j = 0; j < panel.cols; ++j)
      average[i * panel.stride + j] = element(panel, p + i * panel.rank, q, j);
  }
}

void powersgd_settle_reference(const Panel& panel, const float* p, const float* q, float* e) {
  for (std::size_t i = 0; i < panel.rows; ++i) {
    for (std::size_t j = 0; j < panel.cols; ++j)
      e[i * panel.stride + j] -= element(panel, p + i * panel.rank, q, j);
  }
}

}  // namespace thinwire
