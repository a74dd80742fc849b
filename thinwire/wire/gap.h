// gap.h: the adaptive coder of gaps. It learns the lengths of the gaps, so it needs fewer bits
// where survivors cluster.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "thinwire/core/status.h"
#include "thinwire/core/view.h"

namespace thinwire {

// Codes into `out` and returns the bytes used; 0 when they do not fit.
std::size_t gap_encode(std::span<const std::uint32_t> indices, std::uint32_t extent, Bytes out);

Status gap_decode(std::uint8_t parameter, ConstBytes bytes, std::uint32_t extent,
                  std::span<std::uint32_t> out);

}  // namespace thinwire
