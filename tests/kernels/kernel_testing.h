// kernel_testing.h: shared by all kernel tests: each target in turn, awkward lengths and contents,
// guarded arrays, comparison by bits.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numbers>
#include <span>
#include <string>
#include <vector>

#include "thinwire/core/random.h"
#include "thinwire/kernels/target.h"

namespace thinwire {

// The vector widths to test: all of this machine. Under a sanitizer only the widest, which accesses
// memory most aggressively.
inline std::vector<std::string> tested_targets() {
  std::vector<std::string> targets = kernel_targets();
#if defined(THINWIRE_SANITIZED)
  targets.resize(1);
#endif
  return targets;
}

// Runs a test once with each target.
class EachTarget : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { force_kernel_target(GetParam()); }
  void TearDown() override { force_kernel_target(""); }
};

#define THINWIRE_EACH_TARGET(suite)                                               \
  INSTANTIATE_TEST_SUITE_P(Targets, suite, ::testing::ValuesIn(tested_targets()), \
                           [](const auto& info) { return info.param; })

inline constexpr std::size_t awkward_sizes[] = {0,  1,  2,  3,  7,   8,    15,   16,   17,  31,
                                                33, 63, 64, 65, 127, 1000, 4095, 4096, 4097};

// An array between guards, starting `offset` elements after an aligned address.
template <typename T>
class Guarded {
 public:
  Guarded(std::span<const T> content, std::size_t offset)
      : memory_(margin + offset + content.size() + margin, guard),
        start_(margin + offset),
        count_(content.size()) {
    for (std::size_t i = 0; i < count_; ++i) data()[i] = content[i];
  }
  T* data() { return memory_.data() + start_; }
  std::span<const T> view() const { return std::span(memory_).subspan(start_, count_); }
  bool intact() const {
    const std::span<const T> all(memory_);
    const auto whole = [](std::span<const T> part) {
      return std::all_of(part.begin(), part.end(), [](T value) { return value == guard; });
    };
    return whole(all.first(start_)) && whole(all.subspan(start_ + count_));
  }

 private:
  static constexpr std::size_t margin = 64;
  static constexpr T guard = static_cast<T>(12321);
  std::vector<T> memory_;
  std::size_t start_, count_;
};

template <typename T>
bool same_bits(std::span<const T> a, std::span<const T> b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}

enum class Content {
  normal,
  zeros,  // of both signs
  ties,   // multiples of 1/4
  heavy,  // up to the largest floats, so that sums overflow
  denormals,
  nan_first,
  inf_middle,
  nan_middle,
  inf_last,
};
inline constexpr Content all_contents[] = {
    Content::normal,     Content::zeros,      Content::ties,
    Content::heavy,      Content::denormals,  Content::nan_first,
    Content::inf_middle, Content::nan_middle, Content::inf_last};

inline float normal_at(std::uint64_t seed, std::size_t i) {
  const float radius = std::sqrt(-2 * std::log(1 - random_unit(seed, 2 * i)));
  return radius * std::cos(2 * std::numbers::pi_v<float> * random_unit(seed, 2 * i + 1));
}

inline float content_at(Content content, std::uint64_t seed, std::size_t i) {
  const auto bits = static_cast<std::uint32_t>(random_at(seed, i) >> 32);
  switch (content) {
    case Content::zeros:
      return std::bit_cast<float>(bits & 0x80000000u);
    case Content::ties:
      return 0.25f * static_cast<float>(static_cast<int>(bits % 9) - 4);
    case Content::heavy:
      return std::ldexp(normal_at(seed, i), static_cast<int>(bits % 254) - 127);
    case Content::denormals:
      return std::bit_cast<float>(bits & 0x807fffffu);
    default:
      return normal_at(seed, i);
  }
}

inline std::vector<float> make_content(Content content, std::uint64_t seed, std::size_t count) {
  constexpr float inf = std::numeric_limits<float>::infinity();
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = content_at(content, seed, i);
  if (count == 0) return values;
  if (content == Content::nan_first) values.front() = nan;
  if (content == Content::inf_middle) values[count / 2] = inf;
  if (content == Content::nan_middle) values[count / 2] = -nan;
  if (content == Content::inf_last) values.back() = -inf;
  return values;
}

// Calls body(content, size, offset) for all combinations.
template <typename Body>
void for_all_shapes(Body body) {
  for (const Content content : all_contents) {
    for (const std::size_t size : awkward_sizes) {
      for (std::size_t offset = 0; offset < 4; ++offset) {
        SCOPED_TRACE("content " + std::to_string(static_cast<int>(content)) + ", size " +
                     std::to_string(size) + ", offset " + std::to_string(offset));
        body(content, size, offset);
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

}  // namespace thinwire
