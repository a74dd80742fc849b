// crc32c.cc: the plain version, by a table of 256 entries, and checksums of pieces combined.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/core/crc32c.h"

#include <array>

#include "thinwire/core/crc32c_rule.h"

namespace thinwire {
namespace {

constexpr std::array<std::uint32_t, 256> make_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) table[i] = crc32c_entry(i);
  return table;
}

}  // namespace

std::uint32_t crc32c_reference(ConstBytes bytes, std::uint32_t previous) {
  static constexpr auto table = make_table();
  std::uint32_t crc = ~previous;
  for (std::byte byte : bytes)
    crc = (crc >> 8) ^ table[(crc ^ std::to_integer<std::uint32_t>(byte)) & 0xff];
  return ~crc;
}

std::uint32_t crc32c_combine(std::uint32_t crc_a, std::uint32_t crc_b, std::uint64_t bytes_of_b) {
  static constexpr Crc32cPowers powers = crc32c_powers();
  return crc32c_shift(crc_a, bytes_of_b, powers) ^ crc_b;
}

}  // namespace thinwire
