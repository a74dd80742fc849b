// gap.cc: the adaptive coder of gaps on the CPU.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/wire/gap.h"

#include "thinwire/wire/gap_rule.h"

namespace thinwire {

std::size_t gap_encode(std::span<const std::uint32_t> indices, std::uint32_t extent, Bytes out) {
  return gap_rule::encode(indices, 0, extent, out);
}

Status gap_decode(std::uint8_t parameter, ConstBytes bytes, std::uint32_t extent,
                  std::span<std::uint32_t> out) {
  return gap_rule::decode(parameter, bytes, extent, out);
}

}  // namespace thinwire
