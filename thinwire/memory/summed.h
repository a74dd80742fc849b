// summed.h: values on their way through a sum over the workers, as f32, bf16 or f16, and what the
// rounding leaves behind for the residual.
//
//     f32          x travels as it is; the sum is divided afterwards
//     bf16, f16    x / workers is rounded: the sum cannot overflow where the average does not.
//                  f16 limits x to +-32768 first; the residual keeps the excess for later steps
//
// The additions on the way round too, in halves coarsely; that part is nobody's residual.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "thinwire/core/view.h"

namespace thinwire {

struct SummedValues {
  DType dtype = DType::f32;
  int world = 1;

  std::size_t bytes(std::size_t count) const { return count * size_of(dtype); }

  // This worker's part of the sum. `out` is bytes(x.size()) long and aligned for dtype; it may be
  // the memory of x for f32. With f16, limits x in place.
  void write(std::span<float> x, Bytes out) const;

  // From the sum to the average over the workers. False when something in it is not finite.
  bool read(ConstBytes sum, std::span<float> average) const;

  // x becomes what write() left out of it: zero for f32.
  void keep_rest(std::span<float> x) const;
};

}  // namespace thinwire
