// crc32c.cc: the plain version, by a table of 256 entries.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/core/crc32c.h"

#include <array>

namespace thinwire {
namespace {

constexpr std::array<std::uint32_t, 256> make_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) ? 0x82f63b78u : 0u);
    table[i] = value;
  }
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

}  // namespace thinwire
