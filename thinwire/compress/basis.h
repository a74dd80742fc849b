// basis.h: orthonormal vectors out of any: Gram-Schmidt in double precision, each vector projected
// twice, which keeps them orthogonal however nearly parallel they were. All-zero and dependent
// vectors give zeros or a fresh draw, never a NaN. Sums run in the order of kernels/norm.h: the
// same bits everywhere.
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

// Fills it with uniform draws from stream `seed`.
void draw(const Basis& basis, std::uint64_t seed);

// Makes the vectors orthonormal, in their order. One that adds no direction to those before it
// becomes zero, or with `redraw` a random direction of that stream.
void orthonormalise(const Basis& basis, std::optional<std::uint64_t> redraw);

}  // namespace thinwire
