// support.h: supports and values for the tests of the wire layer, repaired frames, bytes as hex,
// files of this repository.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "thinwire/core/crc32c.h"
#include "thinwire/core/random.h"
#include "thinwire/core/view.h"

namespace thinwire {

// `count` distinct indices below `extent`, uniform, sorted.
inline std::vector<std::uint32_t> uniform_support(std::uint64_t seed, std::size_t count,
                                                  std::uint32_t extent) {
  std::vector<std::uint32_t> out;
  for (std::uint64_t draw = 0; out.size() < count;) {
    while (out.size() < count) out.push_back(random_below(seed, draw++, extent));
    std::sort(out.begin(), out.end());
    out.erase(std::unique(out.begin(), out.end()), out.end());
  }
  return out;
}

// About `count` indices in runs: short gaps inside, long ones between.
inline std::vector<std::uint32_t> clustered_support(std::uint64_t seed, std::size_t count,
                                                    std::uint32_t extent) {
  std::vector<std::uint32_t> out;
  const std::uint32_t between =
      std::max<std::uint32_t>(1, extent / static_cast<std::uint32_t>(count) * 16);
  std::uint64_t next = 0;
  for (std::uint64_t i = 0; out.size() < count; ++i) {
    next += i % 16 == 0 ? 1 + random_below(seed, i, between) : 1 + random_below(seed, i, 4);
    if (next >= extent) break;
    out.push_back(static_cast<std::uint32_t>(next));
  }
  if (out.empty()) out.push_back(extent - 1);
  return out;
}

// Values like those that top-k selects: an exponential tail above a threshold of ln
// 1000, random signs.
inline std::vector<float> tail_values(std::uint64_t seed, std::size_t count) {
  std::vector<float> out(count);
  for (std::size_t i = 0; i < count; ++i) {
    const float magnitude = 6.9f - std::log(1.0f - random_unit(seed, 2 * i));
    out[i] = random_at(seed, 2 * i + 1) & 1u ? -magnitude : magnitude;
  }
  return out;
}

// Bytes as hex, sixteen to a line.
inline std::string to_hex(ConstBytes bytes) {
  const char* digits = "0123456789abcdef";
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const auto byte = std::to_integer<unsigned>(bytes[i]);
    text += {digits[byte >> 4], digits[byte & 15u]};
    text += i % 16 == 15 || i + 1 == bytes.size() ? '\n' : ' ';
  }
  return text;
}

// Updates the checksum to the frame's current contents, so that a decoder reads further.
inline void repair(std::vector<std::byte>& frame) {
  const ConstBytes bytes = frame;
  const std::uint32_t crc = crc32c(bytes.subspan(20), crc32c(bytes.first(16)));
  std::memcpy(frame.data() + 16, &crc, sizeof crc);
}

inline std::string read_text(const std::string& path) {
  std::ifstream file(std::string(THINWIRE_SOURCE_DIR) + "/" + path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace thinwire
