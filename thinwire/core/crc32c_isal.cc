// crc32c_isal.cc: CRC-32C by ISA-L, which picks the machine's best instructions at run time.
// SPDX-License-Identifier: Apache-2.0
#include <isa-l/crc.h>

#include <algorithm>

#include "thinwire/core/crc32c.h"

namespace thinwire {

std::uint32_t crc32c(ConstBytes bytes, std::uint32_t previous) {
  // ISA-L takes the length as an int and a pointer to non-const, and does not invert the CRC.
  constexpr std::size_t piece = std::size_t{1} << 30;
  std::uint32_t crc = ~previous;
  while (!bytes.empty()) {
    const ConstBytes head = bytes.first(std::min(piece, bytes.size()));
    auto* data = reinterpret_cast<unsigned char*>(const_cast<std::byte*>(head.data()));
    crc = crc32_iscsi(data, static_cast<int>(head.size()), crc);
    bytes = bytes.subspan(head.size());
  }
  return ~crc;
}

}  // namespace thinwire
