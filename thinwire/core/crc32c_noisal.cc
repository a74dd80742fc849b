// crc32c_noisal.cc: CRC-32C where ISA-L is not installed.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/core/crc32c.h"

namespace thinwire {

std::uint32_t crc32c(ConstBytes bytes, std::uint32_t previous) {
  return crc32c_reference(bytes, previous);
}

}  // namespace thinwire
