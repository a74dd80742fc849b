// basis.cc: Gram-Schmidt, twice over.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/compress/basis.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <span>
#include <vector>

namespace thinwire {
namespace {

using Vector = std::span<double>;

double product(Vector a, Vector b) {
  double sums[basis_sums];
  // Sums of nothing are zeros, which change no other sum.
  const std::size_t used = std::bit_ceil(std::min(a.size(), basis_sums));
  std::fill_n(sums, used, 0.0);
  for (std::size_t at = 0; at < a.size(); at += basis_sums) {
    const std::size_t count = std::min(basis_sums, a.size() - at);
    for (std::size_t i = 0; i < count; ++i) sums[i] += a[at + i] * b[at + i];
  }
  for (std::size_t half = used / 2; half > 0; half /= 2) {
    for (std::size_t i = 0; i < half; ++i) sums[i] += sums[i + half];
  }
  return sums[0];
}

// Removes the directions of `done` from `x` and scales the rest to length 1. Returns false when
// nothing is left.
bool complete(std::span<const Vector> done, Vector x) {
  const double before = std::sqrt(product(x, x));
  for (int pass = 0; pass < 2; ++pass) {
    for (const Vector& other : done) {
      const double share = product(x, other);
      for (std::size_t i = 0; i < x.size(); ++i) x[i] -= share * other[i];
    }
  }
  const double norm = std::sqrt(product(x, x));
  if (!(norm > basis_negligible * before)) return false;
  for (double& value : x) value /= norm;
  return true;
}

}  // namespace

void draw(const Basis& basis, std::uint64_t seed) {
  for (std::size_t k = 0; k < basis.rank; ++k) {
    for (std::size_t i = 0; i < basis.length; ++i)
      basis.values[i * basis.step + k * basis.jump] = basis_draw(seed, basis.length, k, i);
  }
}

void orthonormalise(const Basis& basis, std::optional<std::uint64_t> redraw) {
  std::vector<double> memory(basis.rank * basis.length);
  std::vector<Vector> done;
  for (std::size_t k = 0; k < basis.rank; ++k) {
    float* values = basis.values + k * basis.jump;
    const Vector x = Vector(memory).subspan(k * basis.length, basis.length);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = values[i * basis.step];
    bool sound = complete(done, x);
    if (!sound && redraw) {
      for (std::size_t i = 0; i < x.size(); ++i) x[i] = basis_draw(*redraw, x.size(), k, i);
      sound = complete(done, x);
    }
    for (std::size_t i = 0; i < x.size(); ++i)
      values[i * basis.step] = sound ? static_cast<float>(x[i]) : 0.0f;
    if (sound) done.push_back(x);
  }
}

}  // namespace thinwire
