// frame_sums.h: the checksum of a frame by many blocks, and that of all ranks' frames at once, for
// decoders that read every payload anyway.
//
// A block walks over tiles of lines of 16 bytes. A thread has every N-th line: its sum moves on by
// N lines with a table of products, and a weight at the end takes in what follows its last line.
// Lines behind the payload are zeros. The host makes tables and weights once for a bucket.
//
// Of all ranks' frames, the lines of eight ranks are added to each other before the checksum is
// computed, each rank one bit later than the one before: x^k times a message has x^k times its
// checksum. So an error in one frame changes the sum as it changes the frame's own checksum, and
// equal errors in several frames do not cancel. Only when the sum is wrong each frame is looked at
// (frames.cu). A tile of the decoder takes lines that it reads, while they are in the cache.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "thinwire/core/buffer.h"
#include "thinwire/core/crc32c_rule.h"
#include "thinwire/core/error.h"
#include "thinwire/wire/block.h"

namespace thinwire::block_frame {

inline constexpr unsigned sum_threads = 256, sum_sections = 2, sum_turns = 2;
inline constexpr std::uint32_t line_bytes = 16;
inline constexpr std::uint32_t summed_ranks = 8;

// Lines [first, end) of each frame; tile k takes `each` of them from first + k * each on.
struct LineSection {
  std::uint32_t first, end, each;
};

// What kernels know of the lines and tables.
struct SumPlan {
  LineSection section[sum_sections];
  std::uint32_t sections;
  std::uint32_t tiles;    // that cover all lines
  std::uint32_t end;      // the line at which the sums end: behind those of all tiles
  std::uint64_t payload;  // bytes
  // Entries of bytes; for each section its products; its weights of lines, and of blocks.
  const std::uint32_t* tables;
};

// The plan of one bucket for a grid of blocks, and its tables in device memory.
class FrameSums {
 public:
  FrameSums() = default;

  // `tiles`: those of the decoder. `blocks`: the most that the grid shall have.
  FrameSums(std::uint64_t payload, const std::vector<LineSection>& sections, std::uint32_t tiles,
            unsigned blocks, Device device) {
    plan_.sections = static_cast<std::uint32_t>(sections.size());
    plan_.payload = payload;
    plan_.tiles = tiles;
    for (unsigned s = 0; s < plan_.sections; ++s) {
      const LineSection& one = plan_.section[s] = sections[s];
      if (one.each > sum_turns * sum_threads) fail("a tile has too many lines; this is a bug");
      plan_.tiles = std::max(plan_.tiles, (one.end - one.first + one.each - 1) / one.each);
    }
    blocks_ = std::clamp(plan_.tiles, 1u, blocks);
    for (unsigned s = 0; s < plan_.sections; ++s)
      plan_.end = std::max(plan_.end, sections[s].first + plan_.tiles * sections[s].each);
    static constexpr Crc32cPowers powers = crc32c_powers();
    const auto lines = [](std::uint64_t count) {
      return crc32c_shift(0x80000000u, line_bytes * count, powers);
    };
    std::vector<std::uint32_t> tables;
    for (unsigned b = 0; b < 256; ++b) tables.push_back(crc32c_entry(b));
    for (const LineSection& one : sections) {
      const std::uint32_t factor = lines(std::uint64_t{blocks_} * one.each);
      for (unsigned k = 0; k < 4; ++k)
        for (unsigned b = 0; b < 256; ++b) tables.push_back(crc32c_times(b << 8 * k, factor));
    }
    for (const LineSection& one : sections) {
      for (std::uint32_t j = 0; j < one.each; ++j) tables.push_back(lines(one.each - 1 - j));
      for (std::uint32_t block = 0; block < blocks_; ++block) {
        const std::uint64_t last = block + (plan_.tiles - 1 - block) / blocks_ * blocks_;
        tables.push_back(lines(plan_.end - one.first - (last + 1) * one.each));
      }
    }
    // And a byte: the bits that were moved out of the lines.
    const std::uint64_t behind =
        line_bytes * std::uint64_t{plan_.end} + 1 - block_header_bytes - payload;
    behind_ = crc32c_shift(0x80000000u, behind, powers);
    back_ = crc32c_shift(0x80000000u, crc32c_order - behind % crc32c_order, powers);
    length_ = crc32c_shift(0x80000000u, payload, powers);
    tables_ = Buffer(Place::cuda, tables.size() * sizeof(std::uint32_t), device);
    copy_bytes(tables_.data(), tables.data(), tables_.size(), {});
    synchronize({});
    plan_.tables = tables_.as<std::uint32_t>();
  }

  const SumPlan& plan() const { return plan_; }
  // What follows the payload up to where the sums end, as a factor of its checksum; the inverse.
  std::uint32_t behind() const { return behind_; }
  std::uint32_t back() const { return back_; }
  // What the payload does to the checksum of what is before it.
  std::uint32_t length() const { return length_; }
  bool empty() const { return plan_.tiles == 0; }
  unsigned blocks() const { return blocks_; }

 private:
  SumPlan plan_{};
  unsigned blocks_ = 1;
  std::uint32_t behind_ = 0, back_ = 0, length_ = 0;
  Buffer tables_;
};

// All lines of a payload as one section, for tiles that decode `bytes` of it each.
inline LineSection whole_section(std::uint64_t payload, std::uint64_t bytes) {
  const auto end =
      static_cast<std::uint32_t>((block_header_bytes + payload + line_bytes - 1) / line_bytes);
  return {1, end, static_cast<std::uint32_t>((bytes + line_bytes - 1) / line_bytes)};
}

}  // namespace thinwire::block_frame
