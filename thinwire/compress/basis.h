// basis.h: makes vectors orthonormal by Gram-Schmidt in double precision. Each vector is projected
// twice, so that even nearly parallel vectors become orthogonal. Zero and dependent vectors give
// zeros or a random vector, never a NaN. Sums run in the order of kernels/norm.h, so the bits are
// the same everywhere.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace thinwire {

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
