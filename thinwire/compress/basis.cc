// basis.cc: Gram-Schmidt, twice over.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/compress/basis.h"

#include <cmath>
#include <span>
#include <vector>

#include "thinwire/core/random.h"
#include "thinwire/kernels/norm.h"

namespace thinwire {
namespace {

// Below this share, the rest of a vector after projection is only rounding error.
constexpr double negligible = 1e-12;

using Vector = std::span<double>;

double product(Vector a, Vector b) {
  double sums[16] = {};
  for (std::size_t i = 0; i < a.size(); ++i) sums[i % 16] += a[i] * b[i];
  return add_sums(sums);
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
  if (!(norm > negligible * before)) return false;
  for (double& value : x) value /= norm;
  return true;
}

float uniform(std::uint64_t seed, std::size_t length, std::size_t k, std::size_t i) {
  return 2 * random_unit(seed, k * length + i) - 1;
}

}  // namespace

void draw(const Basis& basis, std::uint64_t seed) {
  for (std::size_t k = 0; k < basis.rank; ++k) {
    for (std::size_t i = 0; i < basis.length; ++i)
      basis.values[i * basis.step + k * basis.jump] = uniform(seed, basis.length, k, i);
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
      for (std::size_t i = 0; i < x.size(); ++i) x[i] = uniform(*redraw, x.size(), k, i);
      sound = complete(done, x);
    }
    for (std::size_t i = 0; i < x.size(); ++i)
      values[i * basis.step] = sound ? static_cast<float>(x[i]) : 0.0f;
    if (sound) done.push_back(x);
  }
}

}  // namespace thinwire
