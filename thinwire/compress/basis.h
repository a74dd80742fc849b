// basis.h: makes vectors orthonormal by Gram-Schmidt in double precision. Each vector is projected
// twice, so that even nearly parallel vectors become orthogonal. Zero and dependent vectors give
// zeros or a random vector, never a NaN. A sum adds element i to sum i % 1024 and then these sums
// as a tree, as a block of a GPU does, so the bits are the same everywhere.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "thinwire/core/cuda.h"
#include "thinwire/core/random.h"

namespace thinwire {

inline constexpr std::size_t basis_sums = 1024;

// Below this share, the rest of a vector after projection is only rounding error.
inline constexpr double basis_negligible = 1e-12;

// Element i of vector k of the random vectors of stream `seed`: uniform in [-1, 1).
THINWIRE_HD inline float basis_draw(std::uint64_t seed, std::size_t length, std::size_t k,
                                    std::size_t i) {
  return 2 * random_unit(seed, k * length + i) - 1;
}

// `rank` vectors of `length` floats: element i of vector k is values[i * step + k * jump].
struct Basis {
  float* values = nullptr;
  std::size_t length = 0, rank = 0;
  std::size_t step = 1, jump = 0;
};

// Fills the vectors with uniform draws from stream `seed`.
void draw(const Basis& basis, std::uint64_t seed);

// Makes the vectors orthonormal, in order. A vector that depends on the earlier ones becomes zero,
// or with `redraw` a random direction from that stream.
void orthonormalise(const Basis& basis, std::optional<std::uint64_t> redraw);

}  // namespace thinwire
