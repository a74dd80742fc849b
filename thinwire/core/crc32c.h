// crc32c.h: the checksum of frames and state files: CRC-32C (Castagnoli), as in iSCSI and ext4. A
// CRC rather than a hash because pieces can be checked in parallel and combined, which GPU encoders
// need.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "thinwire/core/view.h"

namespace thinwire {

// Checksum of `bytes`; pass the checksum of what came before as `previous` to continue.
// crc32c("123456789") = 0xe3069283.
std::uint32_t crc32c(ConstBytes bytes, std::uint32_t previous = 0);

// The same bit by bit: the oracle of the tests, and the fallback where ISA-L is missing.
std::uint32_t crc32c_reference(ConstBytes bytes, std::uint32_t previous = 0);

}  // namespace thinwire
