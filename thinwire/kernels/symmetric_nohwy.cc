// symmetric_nohwy.cc: the passes of an eigen-decomposition where Highway is not installed.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/symmetric.h"

namespace thinwire {

void symmetric_gram(const double* a, std::size_t rows, std::size_t stride, double* g) {
  symmetric_gram_reference(a, rows, stride, g);
}

void symmetric_step(double* g, std::size_t size, std::size_t stride, const double* u,
                    const double* w, const double* v, double* product) {
  symmetric_step_reference(g, size, stride, u, w, v, product);
}

}  // namespace thinwire
