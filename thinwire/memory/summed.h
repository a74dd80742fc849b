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

#include "thinwire/core/element.h"
#include "thinwire/core/view.h"

namespace thinwire {

// The rule for one element, for host and CUDA code.
struct SummedRule {
  DType dtype = DType::f32;
  float world = 1;  // workers
  float share = 1;  // 1 / world

  // Half of f16's range: room for the rounding of each term and of their sums.
  static constexpr float f16_limit = 32768.0f;

  THINWIRE_HD float limited(float x) const {
    if (dtype != DType::f16) return x;
    if (x < -f16_limit) return -f16_limit;
    return f16_limit < x ? +f16_limit : x;  // a value: device code has no address of a constant
  }

  // This worker's part of the sum, as an element of `dtype`, which is V's.
  template <typename V>
  THINWIRE_HD typename V::Stored sent(float x) const {
    if (dtype == DType::f32) return V::narrow(x);
    return V::narrow(limited(x) * share);
  }

  // The average over the workers, from the sum.
  template <typename V>
  THINWIRE_HD float received(typename V::Stored sum) const {
    return dtype == DType::f32 ? V::widen(sum) * share : V::widen(sum);
  }

  // What is left of x when it was sent.
  THINWIRE_HD float rest(float x) const {
    if (dtype == DType::f32) return 0;
    return x - (dtype == DType::f16 ? back<Element<DType::f16>>(x) : back<Element<DType::bf16>>(x));
  }

 private:
  template <typename V>
  THINWIRE_HD float back(float x) const {
    return V::widen(sent<V>(x)) * world;
  }
};

struct SummedValues {
  DType dtype = DType::f32;
  int world = 1;

  SummedRule rule() const {
    return {dtype, static_cast<float>(world), 1.0f / static_cast<float>(world)};
  }

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
