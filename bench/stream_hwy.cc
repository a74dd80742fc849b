// stream_hwy.cc: floors for benchmarks at the machine's vector width.
// SPDX-License-Identifier: Apache-2.0
#include "bench/stream.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/stream_hwy.cc"
#include <hwy/foreach_target.h>
// Highway requires this include after foreach_target.h.
#include <hwy/highway.h>

#include <algorithm>

HWY_BEFORE_NAMESPACE();
namespace thinwire {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Four vectors of each array at a time, which measured as the faster floor.
void StreamRead3Write2(const float* g, float* u, float* v, std::size_t count) {
  const hn::ScalableTag<float> d;
  const std::size_t lanes = hn::Lanes(d);
  const auto half = hn::Set(d, 0.5f);
  std::size_t i = 0;
  for (; count - i >= 4 * lanes; i += 4 * lanes) {
    const std::size_t i1 = i + lanes, i2 = i1 + lanes, i3 = i2 + lanes;
    const auto u0 = hn::Mul(half, hn::Add(hn::LoadU(d, u + i), hn::LoadU(d, g + i)));
    const auto u1 = hn::Mul(half, hn::Add(hn::LoadU(d, u + i1), hn::LoadU(d, g + i1)));
    const auto u2 = hn::Mul(half, hn::Add(hn::LoadU(d, u + i2), hn::LoadU(d, g + i2)));
    const auto u3 = hn::Mul(half, hn::Add(hn::LoadU(d, u + i3), hn::LoadU(d, g + i3)));
    const auto v0 = hn::Mul(half, hn::Add(hn::LoadU(d, v + i), u0));
    const auto v1 = hn::Mul(half, hn::Add(hn::LoadU(d, v + i1), u1));
    const auto v2 = hn::Mul(half, hn::Add(hn::LoadU(d, v + i2), u2));
    const auto v3 = hn::Mul(half, hn::Add(hn::LoadU(d, v + i3), u3));
    hn::StoreU(u0, d, u + i);
    hn::StoreU(u1, d, u + i1);
    hn::StoreU(u2, d, u + i2);
    hn::StoreU(u3, d, u + i3);
    hn::StoreU(v0, d, v + i);
    hn::StoreU(v1, d, v + i1);
    hn::StoreU(v2, d, v + i2);
    hn::StoreU(v3, d, v + i3);
  }
  stream_read3_write2_reference(g + i, u + i, v + i, count - i);
}

float StreamRead(const float* x, std::size_t count) {
  const hn::ScalableTag<float> d;
  const std::size_t lanes = hn::Lanes(d);
  // Four maxima, because a single one would be a dependency chain.
  auto a = hn::Zero(d), b = a, c = a, e = a;
  std::size_t i = 0;
  for (; count - i >= 4 * lanes; i += 4 * lanes) {
    a = hn::Max(a, hn::Abs(hn::LoadU(d, x + i)));
    b = hn::Max(b, hn::Abs(hn::LoadU(d, x + i + lanes)));
    c = hn::Max(c, hn::Abs(hn::LoadU(d, x + i + 2 * lanes)));
    e = hn::Max(e, hn::Abs(hn::LoadU(d, x + i + 3 * lanes)));
  }
  const float largest = hn::GetLane(hn::MaxOfLanes(d, hn::Max(hn::Max(a, b), hn::Max(c, e))));
  return std::max(largest, stream_read_reference(x + i, count - i));
}

void StreamCopy(const float* from, float* to, std::size_t count) {
  const hn::ScalableTag<float> d;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; count - i >= lanes; i += lanes) hn::StoreU(hn::LoadU(d, from + i), d, to + i);
  stream_copy_reference(from + i, to + i, count - i);
}

}  // namespace HWY_NAMESPACE
}  // namespace thinwire
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinwire {

HWY_EXPORT(StreamRead3Write2);
HWY_EXPORT(StreamRead);
HWY_EXPORT(StreamCopy);

void stream_read3_write2(const float* g, float* u, float* v, std::size_t count) {
  HWY_DYNAMIC_DISPATCH(StreamRead3Write2)(g, u, v, count);
}

float stream_read(const float* x, std::size_t count) {
  return HWY_DYNAMIC_DISPATCH(StreamRead)(x, count);
}

void stream_copy(const float* from, float* to, std::size_t count) {
  HWY_DYNAMIC_DISPATCH(StreamCopy)(from, to, count);
}

}  // namespace thinwire
#endif
