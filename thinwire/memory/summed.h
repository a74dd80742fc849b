// summed.h: values that are summed over the workers as f32, bf16 or f16, and their rounding errors
// for the residual.
//
//     f32          sends x; the sum is divided afterwards
//     bf16, f16    sends x / workers, rounded: the sum cannot overflow where the average does not.
//                  f16 limits x to +-32768 first; the residual keeps the excess for later steps
//
// The additions in the collective round too, coarsely in halves. No residual keeps that error.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "thinwire/core/view.h"

namespace thinwire {

struct SummedValues {
  DType dtype = DType::f32;
  int world = 1;

  std::size_t bytes(std::size_t count) const { return count * size_of(dtype); }

  // Writes this worker's part of the sum. `out` is bytes(x.size()) long and aligned for dtype; for
  // f32 it may be the memory of x. With f16 it limits x in place.
  void write(std::span<float> x, Bytes out) const;

  // Converts the sum to the average over the workers. Returns false when an element is not finite.
  bool read(ConstBytes sum, std::span<float> average) const;

  // Replaces x with the error of write(), which is zero for f32.
  void keep_rest(std::span<float> x) const;
};

}  // namespace thinwire
