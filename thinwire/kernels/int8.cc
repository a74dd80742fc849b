// int8.cc: blocks of bytes, one element at a time.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/int8.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "thinwire/kernels/limit.h"

namespace thinwire {
namespace {

bool encode_block(const Int8Rule& rule, const float* g, float* v, std::size_t count, DrawKey key,
                  std::uint32_t first, std::uint8_t* out) {
  const auto x = [&](std::size_t i) { return v == nullptr ? g[i] : taken_in(g[i], v[i]); };
  float smallest = x(0), largest = x(0);
  bool finite = true;
  for (std::size_t i = 0; i < count; ++i) {
    smallest = std::min(smallest, x(i));
    largest = std::max(largest, x(i));
    finite = finite && std::isfinite(x(i));
  }
  const Int8Scale scale = int8_scale(smallest, largest, finite);
  int8_store_scale(scale, out);
  std::uint8_t* codes = out + int8_block_header;
  if (!scale.finite) {
    std::fill_n(codes, count, std::uint8_t{0});
    if (v != nullptr) add_within_limit(g, v, count);
    return false;
  }
  for (std::size_t i = 0; i < count; ++i) {
    codes[i] =
        int8_code(rule.random, scale, x(i), draw_at(key, first + static_cast<std::uint32_t>(i)));
    if (v != nullptr) v[i] = x(i) - (scale.lo + static_cast<float>(codes[i]) * scale.step);
  }
  return true;
}

}  // namespace

void int8_store_scale(const Int8Scale& scale, std::uint8_t* out) {
  std::memcpy(out, &scale.lo, 4);
  std::memcpy(out + 4, &scale.step, 4);
}

Int8Scale int8_load_scale(const std::uint8_t* in, float share) {
  Int8Scale scale;
  std::memcpy(&scale.lo, in, 4);
  std::memcpy(&scale.step, in + 4, 4);
  scale.finite = int8_is_sound(scale.lo, scale.step);
  scale.lo *= share;
  scale.step *= share;
  return scale;
}

bool int8_encode_reference(const Int8Rule& rule, const float* g, float* v, std::size_t count,
                           DrawKey key, std::uint32_t first, std::uint8_t* out) {
  bool finite = true;
  for (std::size_t at = 0; at < count; at += rule.block) {
    const std::size_t size = std::min(rule.block, count - at);
    finite = encode_block(rule, g + at, v == nullptr ? nullptr : v + at, size, key,
                          first + static_cast<std::uint32_t>(at), out) &&
             finite;
    out += int8_block_header + size;
  }
  return finite;
}

bool int8_add_reference(const Int8Rule& rule, const std::uint8_t* in, std::size_t count,
                        float share, float* target) {
  for (std::size_t at = 0; at < count; at += rule.block) {
    const Int8Scale scale = int8_load_scale(in, share);
    if (!scale.finite) return false;
    in += int8_block_header;
    const std::size_t size = std::min(rule.block, count - at);
    for (std::size_t i = 0; i < size; ++i)
      target[at + i] += scale.lo + static_cast<float>(in[i]) * scale.step;
    in += size;
  }
  return true;
}

}  // namespace thinwire
