// gradients.h: synthetic gradients for tests, and small helpers that most tests need.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "thinwire/core/error.h"
#include "thinwire/core/parallel.h"
#include "thinwire/core/random.h"

namespace thinwire::testing {

// Sanitized builds look for memory and threading bugs, which a few steps show as well as many.
#if defined(THINWIRE_SANITIZED)
inline constexpr bool sanitized = true;
#else
inline constexpr bool sanitized = false;
#endif

enum class Shape { normal, heavy, constant, zero };

inline std::vector<float> make_gradient(Shape shape, std::size_t count, std::uint64_t seed) {
  std::vector<float> values(count, shape == Shape::constant ? 0.5f : 0.0f);
  if (shape == Shape::constant || shape == Shape::zero) return values;
  constexpr std::size_t piece = std::size_t{1} << 20;
  parallel_for((count + piece - 1) / piece, [&](std::size_t p) {
    for (std::size_t i = p * piece; i < std::min(count, (p + 1) * piece); ++i) {
      const double a = random_unit(seed, 2 * i) + 0x1p-25, b = random_unit(seed, 2 * i + 1);
      const double normal = std::sqrt(-2 * std::log(a)) * std::cos(6.283185307179586 * b);
      values[i] =
          static_cast<float>(shape == Shape::heavy ? normal * std::exp(2 * normal) * 1e-3 : normal);
    }
  });
  return values;
}

// `count` numbers of the given shape, as a function of the seed. The laws give every scheme the
// same gradients, and to make them takes longer than to exchange them, so short ones are kept. Not
// for ThreadSanitizer: the lock would order what ranks do, and hide races.
inline std::vector<float> gradient(Shape shape, std::size_t count, std::uint64_t seed) {
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
  return make_gradient(shape, count, seed);
#endif
#endif
  static std::mutex mutex;
  static std::map<std::tuple<Shape, std::size_t, std::uint64_t>, std::vector<float>> kept;
  static std::size_t room = std::size_t{1} << 24;  // in elements: 64 MB
  const std::tuple key(shape, count, seed);
  {
    const std::lock_guard lock(mutex);
    if (const auto found = kept.find(key); found != kept.end()) return found->second;
  }
  std::vector<float> values = make_gradient(shape, count, seed);
  const std::lock_guard lock(mutex);
  if (count < 100'000 && count <= room && kept.emplace(key, values).second) room -= count;
  return values;
}

// Equal as bits: NaN equals itself, -0 differs from +0.
inline bool same_bits(std::span<const float> a, std::span<const float> b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::bit_cast<std::uint32_t>(a[i]) != std::bit_cast<std::uint32_t>(b[i])) return false;
  }
  return true;
}

inline double norm(std::span<const float> values) {
  double sum = 0;
  for (const float value : values) sum += static_cast<double>(value) * value;
  return std::sqrt(sum);
}

// The text of what `body` threw; empty if it did not throw.
template <typename Body>
std::string error_of(Body body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace thinwire::testing
