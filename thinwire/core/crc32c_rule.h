// crc32c_rule.h: the arithmetic of CRC-32C for host and CUDA code. The checksum of pieces that
// different threads have computed is the XOR of each piece's checksum, shifted by the bytes after
// it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "thinwire/core/cuda.h"

namespace thinwire {

// The entry of a byte in the table of the bytewise algorithm.
THINWIRE_HD constexpr std::uint32_t crc32c_entry(std::uint32_t byte) {
  for (int bit = 0; bit < 8; ++bit) byte = (byte >> 1) ^ ((byte & 1) != 0 ? 0x82f63b78u : 0u);
  return byte;
}

// The product of two polynomials modulo Castagnoli's. Bit 31 is the coefficient of x^0. Without
// branches: each step of a GPU takes the same short time.
THINWIRE_HD constexpr std::uint32_t crc32c_times(std::uint32_t a, std::uint32_t b) {
  std::uint32_t product = 0;
  for (int i = 31; i >= 0; --i) {
    product ^= b & (0u - ((a >> i) & 1u));
    b = (b >> 1) ^ (0x82f63b78u & (0u - (b & 1u)));
  }
  return product;
}

// at[k][d] = x^(8 * d * 16^k): what d * 16^k bytes that follow do to a checksum.
struct Crc32cPowers {
  std::uint32_t at[16][16] = {};
};

constexpr Crc32cPowers crc32c_powers() {
  Crc32cPowers powers;
  std::uint32_t base = 0x80000000u >> 8;
  for (auto& digits : powers.at) {
    digits[0] = 0x80000000u;
    for (int d = 1; d < 16; ++d) digits[d] = crc32c_times(digits[d - 1], base);
    base = crc32c_times(digits[15], base);
  }
  return powers;
}

// What a piece with checksum `crc` gives to the checksum of the whole when `bytes` bytes follow it.
THINWIRE_HD constexpr std::uint32_t crc32c_shift(std::uint32_t crc, std::uint64_t bytes,
                                                 const Crc32cPowers& powers) {
  for (int k = 0; bytes != 0; ++k, bytes >>= 4) {
    if ((bytes & 15) != 0) crc = crc32c_times(crc, powers.at[k][bytes & 15]);
  }
  return crc;
}

// x^(8 * order) = 1: what takes n bytes back is a shift by order - n.
inline constexpr std::uint64_t crc32c_order = 0x7fffffff;

// Takes zero bytes that follow a piece back: the inverse of crc32c_shift(), for a few bytes.
THINWIRE_HD constexpr std::uint32_t crc32c_unshift(std::uint32_t crc, std::uint32_t bytes) {
  for (std::uint32_t bit = 0; bit < 8 * bytes; ++bit) {
    const std::uint32_t carry = crc >> 31;
    crc = (crc ^ (0x82f63b78u & (0u - carry))) << 1 | carry;
  }
  return crc;
}

}  // namespace thinwire
