// crc32c.h: the checksum of frames and state files: CRC-32C (Castagnoli), as in iSCSI and ext4. It
// is a CRC and not a hash because GPU encoders can compute pieces in parallel and combine them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "thinwire/core/view.h"

namespace thinwire {

// The checksum of `bytes`. To continue a checksum, pass the checksum of the preceding bytes.
// crc32c("123456789") = 0xe3069283.
std::uint32_t crc32c(ConstBytes bytes, std::uint32_t previous = 0);

// The plain version: the reference of the tests, and the fallback without ISA-L.
std::uint32_t crc32c_reference(ConstBytes bytes, std::uint32_t previous = 0);

// The checksum of A followed by B, from the checksums of both and the length of B.
std::uint32_t crc32c_combine(std::uint32_t crc_a, std::uint32_t crc_b, std::uint64_t bytes_of_b);

}  // namespace thinwire
